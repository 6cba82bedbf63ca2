"""Benchmarks on this machine: against kvpress, and cost against length, variants and budget.

Prints Markdown tables. Every comparison alternates its sides within one run and gives the
median and the range over the rounds; ratios are of medians.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
import transformers

from benchmarks import large_model
from benchmarks.tables import memory_cells, selection_share, spread, table
from ckv_core.cache.ragged import compact
from ckv_core.config import DEFAULT_MODEL, CompareRequest
from ckv_core.engine.compare import compare
from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.prefill import Prefill, prefill
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.prompt import build_prompt
from ckv_core.engine.select import select
from ckv_core.events import RunResult
from ckv_core.modeling.loaded import LoadedModel
from ckv_core.modeling.loading import load_model
from ckv_core.modeling.store import models_folder
from ckv_core.variants import VariantSpec

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
    settings: dict[str, object] = {
        "context": EXAMPLE.read_text(encoding="utf-8"),
        "question": QUESTION,
        "scenario": "context-only",
        "variants": VARIANTS,
        "defaults": {"budget": str(BUDGET)},
        "max_new_tokens": NEW_TOKENS,
        "ignore_eos": True,
    }
    request = CompareRequest(**(settings | changes))  # type: ignore[arg-type]
    result = RunResult()
    start = time.perf_counter()
    for event in compare(request, loaded, prefills=prefills):
        result.apply(event)
    return (time.perf_counter() - start) * 1000, result


def against_kvpress(loaded: LoadedModel, python: str, rounds: int) -> None:
    """Eight variants on one prompt: ours cold and warm, kvpress one press after another."""
    context = EXAMPLE.read_text(encoding="utf-8")
    prompt = build_prompt(loaded.tokenizer, context, QUESTION, "context-only")
    setting = {
        "model": str(models_folder() / DEFAULT_MODEL),
        "context_ids": prompt.token_ids[: prompt.compressed_tokens],
        "question_ids": prompt.token_ids[prompt.compressed_tokens :],
        "budget": BUDGET,
        "new_tokens": NEW_TOKENS,
    }
    side = subprocess.Popen(
        [python, str(Path(__file__).with_name("kvpress_side.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TQDM_DISABLE": "1"},
    )

    def ask(line: object) -> dict[str, float]:
        assert side.stdin is not None
        assert side.stdout is not None
        side.stdin.write(json.dumps(line) + "\n")
        side.stdin.flush()
        return json.loads(side.stdout.readline())  # type: ignore[no-any-return]

    times: dict[str, list[float]] = {"cold": [], "warm": [], "kvpress": []}
    try:
        ask(setting)
        for _ in range(rounds):
            prefills = PrefillCache(2**30)
            times["cold"].append(run(loaded, prefills)[0])
            times["warm"].append(run(loaded, prefills)[0])
            times["kvpress"].append(ask("run")["ms"])
    finally:
        side.kill()
    theirs = statistics.median(times["kvpress"])
    rows = [
        (name, spread(values), f"{theirs / statistics.median(values):.1f}x")
        for name, values in times.items()
    ]
    title = f"Against kvpress: 8 variants, {prompt.tokens:,} prompt tokens, {NEW_TOKENS} new tokens"
    table(
        f"{title}, {rounds} rounds", ("side", "ms, median (range)", "speed against kvpress"), rows
    )


def against_length(loaded: LoadedModel) -> None:
    """Stages and bytes as the prompt grows."""
    text = EXAMPLE.read_text(encoding="utf-8")
    per_token = len(text) / 1_960
    rows, memory_rows = [], []
    for length in (512, 1_024, 2_048, 4_096, 8_000):
        needed = int((length - 60) * per_token)
        _, result = run(loaded, context=(text * 5)[:needed], max_new_tokens=32)
        times, receipt = result.timings_ms, result.variants[2].receipt
        assert result.prompt is not None
        assert receipt is not None
        stages = [f"{times[name]:,.0f}" for name in ("prefill", "score", "select", "question")]
        rows.append(
            (
                f"{result.prompt.tokens:,}",
                *stages,
                f"{times['decode'] / 31:.1f}",
                f"{receipt.full_cache_bytes / 2**20:.1f}",
                f"{receipt.cache_bytes / 2**20:.1f}",
                selection_share(times),
            )
        )
        memory_rows.append((f"{result.prompt.tokens:,}", *memory_cells(result)))
    header = (
        "prompt tokens",
        "prefill ms",
        "score ms",
        "select ms",
        "question ms",
        "decode ms a step",
        "full cache MiB",
        "snapkv MiB",
        "selection of prefill",
    )
    table("Cost against length: 8 variants, budget 128", header, rows)
    header = ("prompt tokens", "estimate MiB", "measured peak MiB", "full cache MiB")
    table("Memory above the model's own: 8 variants, budget 128", header, memory_rows)


def changed_alpha(loaded: LoadedModel, rounds: int) -> None:
    """Worker time from a changed alpha to kept sets and receipts, the prompt already read."""
    prefills, times = PrefillCache(2**30), []
    run(loaded, prefills, max_new_tokens=1)
    for number in range(rounds * 2):
        alpha = {"budget": str(BUDGET), "alpha": f"0.{number + 30}"}
        _, result = run(loaded, prefills, defaults=alpha, max_new_tokens=1)
        times.append(result.timings_ms["score"] + result.timings_ms["select"])
    rows = [("score, select, receipts", spread(times))]
    table("A changed alpha, prefill reused: 8 variants", ("stages", "ms, median (range)"), rows)


def against_variants(loaded: LoadedModel) -> None:
    """What one more variant costs."""
    specs = [f"{method}:budget={96 + 32 * i}" for i in range(3) for method in VARIANTS[1:]]
    rows = []
    for count in (1, 2, 4, 8, 16):
        milliseconds, result = run(loaded, variants=("full", *specs)[:count])
        decode = result.timings_ms["decode"] / (NEW_TOKENS - 1)
        rows.append((count, f"{milliseconds:,.0f}", milliseconds, f"{decode:.1f}"))
    first = rows[0][2]
    shown = [
        (n, text, f"{(ms - first) / first / max(n - 1, 1):.0%}" if n > 1 else "", step)
        for n, text, ms, step in rows
    ]
    header = (
        "variants",
        "ms in all",
        "each further, of a single run",
        "decode ms a step",
    )
    table(f"Cost against variants: {NEW_TOKENS} new tokens", header, shown)


def against_budget(loaded: LoadedModel) -> None:
    """What a larger budget costs once the prompt is read."""
    prefills = PrefillCache(2**30)
    run(loaded, prefills, max_new_tokens=1)
    rows = []
    for budget in (64, 128, 256, 512, 1_024):
        milliseconds, result = run(loaded, prefills, defaults={"budget": str(budget)})
        times = result.timings_ms
        step = f"{times['decode'] / (NEW_TOKENS - 1):.1f}"
        rows.append((budget, f"{milliseconds:,.0f}", f"{times['select']:,.0f}", step))
    header = ("budget", "ms in all", "select ms", "decode ms a step")
    table("Cost against budget: 8 variants, prefill reused", header, rows)


@torch.inference_mode()
def against_one_row(loaded: LoadedModel, rounds: int) -> None:
    """One decoding step of eight rows against one of the full cache alone, alternating."""
    states = _prefill(loaded, 2_048)
    decoders = {count: _decoder(loaded, states, VARIANTS[:count]) for count in (1, 8)}
    times: dict[int, list[float]] = {1: [], 8: []}
    for _ in range(rounds * 8):
        for count, decoder in decoders.items():
            token = torch.full((count, 1), 1_000, device=loaded.device)
            times[count].append(_timed(lambda d=decoder, t=token: d.feed(t, commit=False)))  # type: ignore[misc]
    ratio = statistics.median(times[8]) / statistics.median(times[1])
    rows = [("1 (full cache)", spread(times[1]), ""), ("8", spread(times[8]), f"{ratio:.2f}")]
    table("One decoding step at 2,048 tokens", ("rows", "ms, median (range)", "ratio"), rows)


def _prefill(loaded: LoadedModel, length: int) -> Prefill:
    generator = prefill(loaded, list(range(1_000, 1_000 + length)), 64, lambda: False)
    while True:
        try:
            next(generator)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def _decoder(loaded: LoadedModel, states: Prefill, variants: Sequence[str]) -> Decoder:
    length = states.prompt_len
    chosen = [
        select(VariantSpec.parse(text), states, length if text == "full" else BUDGET)
        for text in variants
    ]
    layers = [
        compact(layer.keys, layer.values, [selection.keep_masks[index] for selection in chosen])
        for index, layer in enumerate(states.layers)
    ]
    context = DecodeContext(loaded, layers, len(variants), 1, lambda: False)
    return Decoder(loaded, context, length)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1000


def machine() -> str:
    """What these figures hold for."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return (
        f"{datetime.now(tz=UTC):%Y-%m-%d}; {platform.machine()}, {torch.get_num_threads()} "
        f"threads, {device}; Python {platform.python_version()}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}; {DEFAULT_MODEL}."
    )


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvpress-python", help="python of an environment with kvpress")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    loaded = load_model(DEFAULT_MODEL, report=lambda step: print(step, file=sys.stderr))
    print(machine())
    run(loaded, max_new_tokens=4)
    against_one_row(loaded, options.rounds)
    against_variants(loaded)
    against_budget(loaded)
    changed_alpha(loaded, options.rounds)
    against_length(loaded)
    if torch.cuda.is_available():
        large_model.against_length(large_model.build(loaded.tokenizer, "cuda"), VARIANTS)
    else:
        print("\nNo CUDA device: the model shaped like Llama-3.1-8B was not measured.")
    if options.kvpress_python:
        against_kvpress(loaded, options.kvpress_python, options.rounds)


if __name__ == "__main__":
    main()
