"""Benchmarks on this machine: against kvpress, and cost against length, variants and budget.

Prints Markdown tables. Comparisons alternate their sides within one run and give the median and
the range over the rounds; a ratio is taken within each round. Cost against length is single shot.
"""

import argparse
import gc
import platform
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import median
from unittest.mock import patch

import torch
import transformers

from benchmarks.kvpress_process import kvpress_side
from benchmarks.limit import against_limit
from benchmarks.setting import BUDGET, EXAMPLE, NEW_TOKENS, QUESTION, VARIANTS, request, run
from benchmarks.tables import memory_cells, ratios, selection_share, spread, table
from ckv_core.engine import timing
from ckv_core.engine.cache.slots import Keep
from ckv_core.engine.compare import compare
from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.prompt import build_prompt
from ckv_core.engine.rows import RowPlan, prompt_rows
from ckv_core.engine.select import select
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.loading import load_model
from ckv_core.records.events import VariantSelected
from ckv_core.records.run_request import DEFAULT_MODEL
from ckv_core.records.variants import VariantSpec


def against_kvpress(loaded: LoadedModel, python: str, rounds: int) -> None:
    """Eight variants on one prompt: ours cold and warm, kvpress one press after another."""
    context = EXAMPLE.read_text(encoding="utf-8")
    prompt = build_prompt(loaded.tokenizer, context, QUESTION, "context-only")
    wanted = {
        "context_ids": prompt.token_ids[: prompt.compressed_tokens],
        "question_ids": prompt.token_ids[prompt.compressed_tokens :],
        "variants": VARIANTS[1:],
        "budgets": [BUDGET],
        "new_tokens": NEW_TOKENS,
    }
    times: dict[str, list[float]] = {"cold": [], "warm": [], "kvpress": []}
    with kvpress_side(python, loaded.device.type, ignore_eos=True) as side:
        for _ in range(rounds):
            prefills = PrefillCache(2**30)
            for name in ("cold", "warm"):
                times[name].append(run(loaded, prefills)[0])
            times["kvpress"].append(side(wanted))
    rows = [
        (name, spread(values), ratios(times["kvpress"], values)) for name, values in times.items()
    ]
    title = f"Against kvpress: 8 variants, {prompt.tokens:,} prompt tokens, {NEW_TOKENS} new tokens"
    table(
        f"{title}, {rounds} rounds",
        ("side", "ms, median (range)", "speed against kvpress, median (range)"),
        rows,
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
    """Wall time from the request to the last variant's receipt and kept set, the prompt read."""
    prefills, times = PrefillCache(2**30), []
    run(loaded, prefills, max_new_tokens=1)
    for number in range(rounds * 2):
        alphas = (f"0.{number + 30}",)
        wanted = request(budgets=(str(BUDGET),), alphas=alphas, max_new_tokens=1)
        start = last = time.perf_counter()
        for event in compare(wanted, loaded, prefills=prefills):
            if isinstance(event, VariantSelected):
                last = time.perf_counter()
        times.append((last - start) * 1000)
    rows = [("request to the last kept set", spread(times))]
    table("A changed alpha, prefill reused: 8 variants", ("what", "ms, median (range)"), rows)


def sweep_cost(loaded: LoadedModel, rounds: int) -> None:
    """36 points of about 2,000 tokens, nothing generated, against reading that prompt."""
    grid = {
        "variants": ("snapkv+critical", "pyramidkv+critical", "adakv+critical"),
        "budgets": ("64", "128", "256", "512"),
        "alphas": ("0.25", "0.5", "0.75"),
    }
    times, reading = [], []
    for _ in range(rounds):
        milliseconds, result = run(loaded, **grid, max_new_tokens=0, ignore_eos=False)
        times.append(milliseconds)
        reading.append(result.timings_ms["prefill"])
    rows = [(len(result.variants), spread(times), spread(reading), ratios(times, reading))]
    header = ("points", "ms, median (range)", "of it prefill", "sweep / its prefill")
    table("A sweep: 4 budgets, 3 alphas, 3 methods, no generation", header, rows)


def against_variants(loaded: LoadedModel, rounds: int) -> None:
    """What one more variant costs; the numbers of variants alternate."""
    specs = [f"{method}:budget={96 + 32 * i}" for i in range(3) for method in VARIANTS[1:]]
    times: dict[int, list[float]] = {count: [] for count in (1, 2, 4, 8, 16)}
    steps: dict[int, list[float]] = {count: [] for count in times}
    for _ in range(rounds):
        for count, values in times.items():
            milliseconds, result = run(loaded, variants=("full", *specs)[:count])
            values.append(milliseconds)
            steps[count].append(result.timings_ms["decode"] / (NEW_TOKENS - 1))
    shown = []
    for count, values in times.items():
        further = [
            100 * (all_ms - one_ms) / one_ms / (count - 1) if count > 1 else 0.0
            for all_ms, one_ms in zip(values, times[1], strict=True)
        ]
        share = f"{spread(further)} %" if count > 1 else ""
        shown.append((count, spread(values), share, spread(steps[count], 1)))
    header = (
        "variants",
        "ms in all",
        "each further, of a single run",
        "decode ms a step",
    )
    table(f"Cost against variants: {NEW_TOKENS} new tokens", header, shown)


def against_budget(loaded: LoadedModel, rounds: int) -> None:
    """What a larger budget costs once the prompt is read; the budgets alternate."""
    prefills = PrefillCache(2**30)
    run(loaded, prefills, max_new_tokens=1)
    found: dict[int, list[tuple[float, ...]]] = {n: [] for n in (64, 128, 256, 512, 1_024)}
    for _ in range(rounds):
        for budget, values in found.items():
            wanted = {"budgets": (str(budget),), "max_new_tokens": 32}
            milliseconds, result = run(loaded, prefills, **wanted)
            times = result.timings_ms
            values.append((milliseconds, times["select"], times["decode"] / 31))
    rows = [
        (budget, *(spread(column, 1) for column in zip(*values, strict=True)))
        for budget, values in found.items()
    ]
    header = ("budget", "ms in all", "select ms", "decode ms a step")
    table("Cost against budget: 8 variants, 32 new tokens, prefill reused", header, rows)


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
    ratio = ratios(times[8], times[1])
    rows = [("1 (full cache)", spread(times[1]), ""), ("8", spread(times[8]), ratio)]
    table("One decoding step at 2,048 tokens", ("rows", "ms, median (range)", "ratio"), rows)


def against_alone(loaded: LoadedModel, rounds: int) -> None:
    """The shared batch's step against what steps of each variant alone explain of it.

    They explain the step of as many rows that hold one entry, and of each variant what its own
    entries cost: its step less that of one such row. At 100 % a step is the full cache's.
    """
    bare, specs = _prefill(loaded, 1), (*VARIANTS, "snapkv:budget=100%")
    steps: dict[str, list[float]] = {spec: [] for spec in specs}
    shared, explained = [], []
    for _ in range(rounds):
        with patch.object(timing, "STEP_LIMIT_S", 0.0):  # no larger batches
            _, result = run(loaded, variants=specs, time=True)
        alone = [each.time.step_ms for each in result.variants if each.time]
        for spec, quartiles in zip(specs, alone, strict=True):
            steps[spec] += quartiles
        one, all_rows = (_bare_step(loaded, bare, count) for count in (1, len(specs)))
        shared.append(result.timings_ms["decode"] / (NEW_TOKENS - 1))
        explained.append(all_rows + sum(middle - one for _, middle, _ in alone))
    rows = [(spec, spread(values, 1), "") for spec, values in steps.items()]
    rows += [
        ("all in one batch", spread(shared, 1), ""),
        ("explained by them", spread(explained, 1), ratios(explained, shared)),
    ]
    header = ("one decoding step", "ms, median (range)", "explained / shared")
    table("Each variant alone, and what that explains of the shared batch", header, rows)


@torch.inference_mode()
def _bare_step(loaded: LoadedModel, states: Prefill, count: int) -> float:
    """Milliseconds of a step of so many rows that hold next to nothing."""
    decoder = _decoder(loaded, states, ["full"] * count)
    token = torch.full((count, 1), 1_000, device=loaded.device)
    return median(_timed(lambda: decoder.feed(token, commit=False)) for _ in range(33))


def _prefill(loaded: LoadedModel, length: int) -> Prefill:
    generator = prefill(loaded, list(range(1_000, 1_000 + length)), Needs(64), lambda: False)
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
    plans = [RowPlan([Keep(mask) for mask in each.keep_masks]) for each in chosen]
    rows = prompt_rows(states, plans)
    return Decoder(loaded, DecodeContext(loaded, rows.start(1), lambda: False))


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
    """Run the requested benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvpress-python", help="python of an environment with kvpress")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    gc.freeze()  # as the worker does once it has imported the engine
    loaded = load_model(DEFAULT_MODEL, report=lambda step: print(step, file=sys.stderr))
    print(machine())
    run(loaded, max_new_tokens=4)
    if loaded.device.type == "cpu":
        against_limit(loaded, options.rounds)
    against_one_row(loaded, options.rounds)
    against_alone(loaded, options.rounds)
    against_variants(loaded, options.rounds)
    against_budget(loaded, options.rounds)
    changed_alpha(loaded, options.rounds)
    sweep_cost(loaded, options.rounds)
    against_length(loaded)
    if options.kvpress_python:
        against_kvpress(loaded, options.kvpress_python, options.rounds)


if __name__ == "__main__":
    main()
