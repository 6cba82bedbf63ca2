"""A cold comparison of eight variants against what nothing could save, and where the rest goes.

The limit is one plain prefill (transformers' own model and SDPA, all tokens at once) and the linear
maps of all decoding steps alone, eight rows each, on the same threads. Sides alternate. Run by
itself, `PYTHONPATH=. python benchmarks/limit.py`, it can count CPU time, which a loaded machine
stretches less than the wall clock.
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.setting import EXAMPLE, NEW_TOKENS, QUESTION, VARIANTS, run
from benchmarks.tables import ratios, spread, table
from ckv_core.base.home import models_folder
from ckv_core.base.stopwatch import Stopwatch
from ckv_core.engine.decode import DecodeContext
from ckv_core.engine.generation import Generation
from ckv_core.engine.prompt import build_prompt
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.loading import load_model
from ckv_core.records.run_request import DEFAULT_MODEL

STEPS = NEW_TOKENS - 1  # the first token comes from the prompt's logits

Clock = Callable[[], float]


def against_limit(loaded: LoadedModel, rounds: int, clock: Clock = time.perf_counter) -> None:
    """Print the ratio to the limit, and the share of each part in it."""
    plain = AutoModelForCausalLM.from_pretrained(
        str(models_folder() / DEFAULT_MODEL), dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    context = EXAMPLE.read_text(encoding="utf-8")
    prompt = build_prompt(loaded.tokenizer, context, QUESTION, "context-only")
    ids = torch.tensor([prompt.token_ids[: prompt.compressed_tokens]])
    found = [_round(loaded, plain, ids, clock) for _ in range(rounds)]
    limits = [times["plain"] + times["maps"] for times in found]
    rows = []
    for label, (part, less) in _ROWS.items():
        values = [times[part] - sum(times[name] for name in less) for times in found]
        rows.append((label, spread(values), ratios(values, limits)))
    clocked = "CPU" if clock is time.process_time else "wall clock"
    table(
        f"Against the limit: cold, {len(VARIANTS)} variants, {prompt.tokens:,} tokens, "
        f"{NEW_TOKENS} new; {clocked} time, {torch.get_num_threads()} threads",
        ("what", "ms, median (range)", "of the limit, median (range)"),
        rows,
    )


# What each row shows: a time, less others.
_STAGES = ("prefill", "score", "select", "question", "decode", "texts", "measure")
_ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "limit: a plain prefill": ("plain", ()),
    "limit: the steps' linear maps": ("maps", ()),
    "**the comparison**": ("all", ()),
    "prefill, over the plain one": ("prefill", ("plain",)),
    "scoring": ("score", ()),
    "sorting, selection, caches": ("select", ()),
    "the question, read by all rows": ("question", ()),
    "steps: attention": ("attention", ()),
    "steps: small operators, dispatch": ("decode", ("maps", "attention")),
    "measuring": ("measure", ()),
    "detokenising": ("texts", ()),
    "the rest": ("all", _STAGES),
}


def _round(
    loaded: LoadedModel, plain: PreTrainedModel, ids: Tensor, clock: Clock
) -> dict[str, float]:
    """Milliseconds of the limit's parts, of one cold comparison and of its parts."""
    times: dict[str, float] = dict.fromkeys(("attention", "texts", "measure"), 0.0)
    maps = [part for part in loaded.model.modules() if hasattr(part, "out_features")]
    fed = [torch.randn(len(VARIANTS), 1, cast(int, part.in_features)) for part in maps]
    with torch.inference_mode():
        with _timed(times, "plain", clock):
            plain(input_ids=ids, use_cache=True, logits_to_keep=1)
        with _timed(times, "maps", clock):
            for _ in range(STEPS):
                for part, inputs in zip(maps, fed, strict=True):
                    part(inputs)
    with ExitStack() as stack:
        stack.enter_context(patch.object(Stopwatch, "now", lambda _: clock()))
        step = _clocked(DecodeContext.attend, times, "attention", clock)
        question = DecodeContext.attend

        def attend(self: DecodeContext, layer: int, query: Tensor, *given: Any) -> Tensor:
            return (step if query.shape[2] == 1 else question)(self, layer, query, *given)

        stack.enter_context(patch.object(DecodeContext, "attend", attend))
        append = _clocked(Generation.append, times, "texts", clock)
        stack.enter_context(patch.object(Generation, "append", append))
        with _timed(times, "all", clock):
            _, result = run(loaded)
    return times | result.timings_ms


@contextmanager
def _timed(times: dict[str, float], name: str, clock: Clock) -> Iterator[None]:
    start = clock()
    yield
    times[name] = times.get(name, 0.0) + (clock() - start) * 1000


def _clocked(work: Callable[..., Any], times: dict[str, float], name: str, clock: Clock) -> Any:
    def timed(*given: Any) -> Any:
        with _timed(times, name, clock):
            return work(*given)

    return timed


def main() -> None:
    """Run by itself; with CPU time on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="on a loaded machine, one thread")
    options = parser.parse_args()
    gc.freeze()
    loaded = load_model(DEFAULT_MODEL, "cpu")
    run(loaded, max_new_tokens=4)
    against_limit(
        loaded, options.rounds, time.process_time if options.cpu_time else time.perf_counter
    )


if __name__ == "__main__":
    main()
