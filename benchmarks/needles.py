"""Whether each method still gives the answer: needles in real texts, variants and budgets.

Writes a CSV line per prompt, variant and budget as each prompt ends; one prefill serves all of a
prompt. `benchmarks/answers.py` makes the tables of docs/explanation/findings.md from such files.
"""

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.needle_prompts import TASKS, Needle, needles, read_texts
from ckv_core.engine.compare import compare
from ckv_core.methods import METHODS
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.loading import load_model
from ckv_core.records.events import RunResult
from ckv_core.records.grid import at_points
from ckv_core.records.records import VariantResult
from ckv_core.records.run_request import DEFAULT_MODEL, SCENARIOS, RunRequest
from ckv_core.records.variants import VariantSpec

# Variant -> the base that its heads are compared with; none for what has no heads to compare.
VARIANTS = {
    "streaming_llm": None,
    "snapkv": None,
    "snapkv:pool=none": "snapkv",
    "snapkv+critical": "snapkv",
    "snapkv+critical:stage2=pooled": "snapkv",
    "snapkv+critical:norm=off": "snapkv",
    "snapkv+critical:alpha=0": "snapkv",
    "adakv": None,
    "adakv+critical": "adakv",
    "adakv+critical:stage2=pooled": "adakv",
    "pyramidkv": None,
}
# All that are registered, and CriticalKV's two readings over SnapKV.
EVERY: dict[str, str | None] = {
    method.name: None for method in METHODS if method.name != "full"
} | {"snapkv+critical": "snapkv", "snapkv+critical:stage2=pooled": "snapkv"}
COLUMNS = [
    "model",
    "scenario",
    "task",
    "text",
    "depth",
    "tokens",
    "budget",
    "variant",
    "answer",
    "found",
    "stopped",
    "agreement",
    "kl",
    "head_l1",
    "heads_closer",
    "final_l1",
    "generated",
]


def measure(
    loaded: LoadedModel,
    needle: Needle,
    points: list[tuple[str, str]],
    scenario: str,
    new_tokens: int,
) -> RunResult:
    """All points, of a budget and a variant each, on one prompt."""
    request = RunRequest(
        context=needle.context,
        question=needle.question,
        answer=needle.answer,
        scenario=scenario,  # type: ignore[arg-type]
        max_new_tokens=new_tokens,
    )
    specs = [VariantSpec.parse(variant, {"budget": budget}).spec for budget, variant in points]
    request = at_points(request, ["full", *specs])
    result = RunResult()
    for event in compare(request, loaded):
        result.apply(event)
    return result


def rows(
    result: RunResult, points: list[tuple[str, str]], bases: dict[str, str | None]
) -> Iterator[dict[str, object]]:
    """A row per point, the full cache first."""
    full, *evicted = result.variants
    yield _row(full, "", "full", None)
    found = dict(zip(points, evicted, strict=True))
    for (budget, name), variant in found.items():
        base = bases[name]
        yield _row(variant, budget, name, found[budget, base] if base else None)


def _row(
    variant: VariantResult, budget: str, name: str, base: VariantResult | None
) -> dict[str, object]:
    row: dict[str, object] = {
        "budget": budget,
        "variant": name,
        "found": int(bool(variant.answer_found)),
        "stopped": variant.stopped,
        "agreement": "" if variant.agreement is None else f"{variant.agreement:.4g}",
        "generated": variant.text,
    }
    if (own := variant.perturbation) is not None and name != "full":
        row |= {"kl": f"{own.kl:.6g}", "final_l1": f"{own.final_hidden_l1:.6g}"}
        row["head_l1"] = f"{np.nanmean(own.head_l1, dtype=np.float64):.6g}"
        if base is not None and base.perturbation is not None:
            row["heads_closer"] = f"{(own.head_l1 < base.perturbation.head_l1).mean():.6g}"
    return row


def main() -> None:
    """Measure one task with one model on all texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("csv", type=Path, help="written; prompts that it has already are passed over")
    add("--texts", type=Path, help="JSON Lines with context; default: the app's examples, modules")
    add("--task", choices=TASKS, default="code")
    add("--scenario", choices=SCENARIOS, default="regular")
    add("--model", default=DEFAULT_MODEL)
    add("--name", help="of the model in the file")
    add("--tokens", type=int, default=1050, help="of a text")
    add("--count", type=int, default=30, help="texts")
    add("--all-methods", action="store_true", help="every registered method, two of CriticalKV")
    add("--budget", action="append", help="default 20%% and 50%%")
    add("--max-new-tokens", type=int, default=40)
    options = parser.parse_args()
    variants = EVERY if options.all_methods else VARIANTS
    loaded = load_model(options.model, report=lambda _: None)
    texts, budgets = read_texts(options.texts), options.budget or ["20%", "50%"]
    points = [(budget, variant) for budget in budgets for variant in variants]
    done: set[str] = set()
    if options.csv.exists():
        with options.csv.open(encoding="utf-8", newline="") as file:
            done = {row["text"] for row in csv.DictReader(file)}
    with options.csv.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not done:
            writer.writeheader()
        for needle in needles(texts, options.task, loaded.tokenizer, options.tokens, options.count):
            if needle.text in done:
                continue
            start = time.perf_counter()
            result = measure(loaded, needle, points, options.scenario, options.max_new_tokens)
            shared = {
                "model": options.name or options.model,
                "scenario": options.scenario,
                "task": options.task,
                "text": needle.text,
                "depth": f"{needle.depth:.3f}",
                "tokens": result.prompt.tokens if result.prompt else 0,
                "answer": needle.answer,
            }
            writer.writerows(shared | row for row in rows(result, points, variants))
            file.flush()
            took = time.perf_counter() - start
            print(f"{needle.text}: {took:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
