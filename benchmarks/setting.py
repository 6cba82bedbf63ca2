"""The run that the benchmarks vary: prompt, variants, budget and tokens."""

import time
from pathlib import Path

from ckv_core.engine.compare import compare
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.events import RunResult
from ckv_core.records.run_request import RunRequest

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "assets" / "examples" / "harbour_report.txt"
QUESTION = "What is the access code for pump house 4?"
VARIANTS = (
    "full",
    "streaming_llm",
    "snapkv",
    "snapkv+critical",
    "pyramidkv",
    "pyramidkv+critical",
    "adakv",
    "adakv+critical",
)
BUDGET = 128
NEW_TOKENS = 64


def run(
    loaded: LoadedModel, prefills: PrefillCache | None = None, **changes: object
) -> tuple[float, RunResult]:
    """One comparison; milliseconds from request to last token, and the result."""
    wanted = request(**changes)
    result = RunResult()
    start = time.perf_counter()
    for event in compare(wanted, loaded, prefills=prefills):
        result.apply(event)
    return (time.perf_counter() - start) * 1000, result


def request(**changes: object) -> RunRequest:
    """The benchmarks' own prompt and variants, but for what is changed."""
    settings: dict[str, object] = {
        "context": EXAMPLE.read_text(encoding="utf-8"),
        "question": QUESTION,
        "scenario": "context-only",
        "variants": VARIANTS,
        "budgets": (str(BUDGET),),
        "max_new_tokens": NEW_TOKENS,
        "ignore_eos": True,
    }
    return RunRequest(**(settings | changes))  # type: ignore[arg-type]
