"""The table of a run, a row per variant: for readers, and unrounded for files. No torch."""

from collections.abc import Callable, Collection, Iterable
from functools import partial

import numpy as np

from ckv_core.base.percent import percent
from ckv_core.experiment.names import display_names
from ckv_core.experiment.regimes import regime_named, run_regimes
from ckv_core.experiment.rounding import floor_by_metric, floor_sentence, short
from ckv_core.experiment.table import Cell, Column, Plain, Table, metric_column, text_column
from ckv_core.records.byte_budget import requested_bytes
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import METRICS, Group, Metric, metrics_in
from ckv_core.records.outcomes import cut_note, has_exact_match, outcome_word
from ckv_core.records.records import VariantResult

MIB = 2**20


# What stands above a column, where it is not the metric's label, unit and definition.
_LABELS = {
    "answer": "Outcome",
    "forced_top1": "Teacher-forced agreement",
    "forced_kl": "Teacher-forced KL",
    "kl": "KL, first step",
    "final": "Final hidden",
    "head": "Mean head",
    "improved_heads": "Heads closer to the full cache",
}
_UNITS = {
    "answer": "",
    "agreement": "with full",
    "first_difference": "from full",
    "exact_match": "with answer",
    "token_f1": "with answer",
    "edit_similarity": "with answer",
    "forced_top1": "of positions",
    "forced_kl": "mean, nats",
    "share": "of full",
    "retained_entries": "requested / used",
    "cache_bytes": "MiB, requested / used",
    "improved_heads": "than without CriticalKV",
    "step_ms": "ms, quartiles",
    **dict.fromkeys(("prefill_peak", "decode_peak"), "MiB, measured / estimated"),
}
_HELP = {
    "forced_top1": "Teacher-forced on the full cache's own text: share of its positions where this "
    "method's top token is the same; n in the cell's title.",
    "forced_kl": "Teacher-forced on the full cache's own text: KL divergence from the full cache's "
    "next-token distribution, mean over its positions; n in the cell's title.",
}
_TIME_UNITS = ("ms", "tokens/s", "rows")
TIMES = ("added_first_token_ms", "step_ms")
# An unfinished run will measure them; a finished one may have nothing to measure.
_EXPECTED = {"agreement", "first_difference", "share", "retained_entries", "cache_bytes"}
_EXPECTED |= {"kl", "final", "head", "improved_heads"}
# All others are shown on request, so that the table fits a laptop.
_ALWAYS = _EXPECTED - {"first_difference"} | {"answer", "kl_at_difference", *TIMES}
_ALWAYS |= {"prefill_peak", "decode_peak"}


def summary_table(
    result: RunResult, *, ended: bool = False, groups: Collection[Group] = ()
) -> Table[VariantResult] | None:
    """A row per variant; None until the variants are known.

    `ended`: nothing will come any more: what no variant has is left out. `groups`: of metrics that
    are shown too.
    """
    metrics = [m for m in METRICS.values() if "table" in m.places or m.group in groups]
    columns = [
        column
        for metric in metrics
        if metric.key != "exact_match" or has_exact_match(result.variants)
        for column in [_column(result, metric)]
        if (metric.key in _EXPECTED and not ended) or any(map(column.cell, result.variants))
    ]
    if not result.variants or not columns:
        return None
    regimes = run_regimes(result)
    variants = result.variants
    notes = (cut_note(variants), floor_sentence(result), alone_note(variants), *_warnings(result))
    return Table(
        caption="Metrics of every method",
        columns=[
            text_column("variant", "Method", lambda each: Cell(each.label, spec=each.spec)),
            text_column("spec", "SPEC", lambda each: each.spec, is_hidden=True),
            *columns,
        ],
        items=result.variants,
        file="summary.csv",
        head=regimes.head,
        note="\n".join(filter(None, notes)),
        marks=regimes.marks,
        places=range(len(result.variants)),
    )


def metric_rows(result: RunResult) -> tuple[list[str], list[tuple[Plain, ...]]]:
    """Head and rows, unrounded; no generated text, which a spreadsheet could run."""
    figures, floor = metrics_in("csv"), floor_by_metric(result.floor)
    head = ["index", "spec", "label", "regime", "outcome", "answer_found", "stopped"]
    head += [metric.header or key for key, metric in figures.items()]
    head += ["requested_bytes", "kl_floor_nats", "final_hidden_l1_floor"]
    rows: list[tuple[Plain, ...]] = [
        (
            *(index, variant.spec, variant.label, regime_named(variant.method)),
            *(variant.outcome, variant.is_right, variant.stopped),
            *(metric.read(variant) for metric in figures.values()),
            *(requested_bytes(result, variant), floor.get("kl"), floor.get("final")),
        )
        for index, variant in enumerate(result.variants)
    ]
    return head, rows


def four_digits(value: float) -> str:
    """Four digits or more: `g` alone would turn 12,345 into 1.234e+04."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.4g}"


def _column(result: RunResult, metric: Metric) -> Column[VariantResult]:
    """Shown on demand unless it has weight; a warning is never hidden."""
    key, read = metric.key, partial(_CELLS.get(metric.key, _plain), result, metric)
    is_warning = any(cell.tone == "warn" for each in result.variants if (cell := read(each)))
    return metric_column(
        metric,
        read,
        label=_LABELS.get(key, metric.mean_label),
        unit=_UNITS.get(key, metric.unit_name),
        definition=_HELP.get(key, metric.definition),
        is_extra=key not in _ALWAYS and not is_warning,
    )


def _plain(result: RunResult, metric: Metric, variant: VariantResult) -> Cell | None:
    """Rounded by its unit; whole, with n, in the title. It says so where rounding moves as far."""
    value = metric.read(variant)
    if value is None:
        return None
    is_nats = metric.unit == "nats"
    text = f"{value:z#.3g}" if is_nats else four_digits(value)
    text = f"{value:,.0f}" if metric.unit in ("tokens", "entries") else text
    text = percent(value) if metric.is_share else text
    title = f"{value:z.6g}{' nats' * is_nats}"
    if metric.group == "forced":
        positions = int(np.isfinite(variant.analysis[metric.key]).sum())
        title += f"; n = {positions:,} positions of the full cache's text."
    elif metric.has_own_full:
        title += "; n = 1 answer."
    floor = floor_by_metric(result.floor).get(metric.key)
    if floor is not None and value <= floor:
        title += f"; this run's rounding floor is {short(floor)}."
        return Cell(f"{text} \N{LESS-THAN OR EQUAL TO} floor", title=title)
    return Cell(text, title=title, tone="good" if metric.key == "agreement" and value == 1 else "")


def outcome_title(variant: VariantResult) -> str:
    """The meaning of an outcome that is neither right nor wrong; empty for the others."""
    titles = {
        "cut": "Cut at the limit of new tokens before an answer: neither right nor wrong.",
        "failed": variant.failure,
    }
    return titles.get(variant.outcome or "", "")


def _answer(_: RunResult, __: Metric, variant: VariantResult) -> Cell | None:
    if (word := outcome_word(variant)) == "":
        return None
    return Cell(word, title=outcome_title(variant), tone="good" if variant.is_right else "warn")


def _first_difference(_: RunResult, __: Metric, variant: VariantResult) -> Cell | None:
    if variant.first_difference is not None:
        return Cell(f"token {variant.first_difference + 1}")
    return None if variant.agreement is None else Cell("none", tone="good")


def _kept(_: RunResult, __: Metric, variant: VariantResult) -> Cell | None:
    receipt = variant.receipt
    if receipt is None:
        return None
    used, requested = receipt.retained_entries, receipt.requested_entries
    title = f"Requested {requested:,} entries, counted {used:,} in the kept sets."
    text = f"{requested:,} / {used:,}"
    return Cell(text, title=title, tone="" if used == requested else "warn")


def _bytes(result: RunResult, _: Metric, variant: VariantResult) -> Cell | None:
    requested, receipt = requested_bytes(result, variant), variant.receipt
    if receipt is None or requested is None:
        return None
    used = receipt.cache_bytes
    title = f"Requested {requested:,} bytes, measured {used:,} bytes in the tensors."
    if "store" in variant.params:
        title += f" What is kept is held as {variant.params['store']}."
    text = f"{requested / MIB:.2f} / {used / MIB:.2f}"
    is_off = abs(used - requested) > 0.05 * requested
    return Cell(text, title=title, tone="warn" if is_off else "")


def _share(_: RunResult, metric: Metric, variant: VariantResult) -> Cell | None:
    share, receipt = metric.read(variant), variant.receipt
    if share is None or receipt is None:
        return None
    full = f"The full cache takes {receipt.full_cache_bytes / MIB:.2f} MiB."
    return Cell(percent(share, 1), title=full)


def _peak(_: RunResult, metric: Metric, variant: VariantResult) -> Cell | None:
    """Measured beside estimated, in MiB; and as a share of the full cache in the title."""
    peak, memory, receipt = metric.read(variant), variant.memory, variant.receipt
    if peak is None or memory is None or receipt is None:
        return None
    is_first = metric.key == "prefill_peak"
    estimate = (memory.prefill_estimate if is_first else memory.decode_estimate) or 0
    share = percent(peak / receipt.full_cache_bytes)
    title = f"Measured {peak:,} bytes, {share} of the full cache's."
    return Cell(f"{peak / MIB:,.1f} / {estimate / MIB:,.1f}", title=title)


def _held(_: RunResult, __: Metric, variant: VariantResult) -> Cell | None:
    if variant.held is None:
        return None
    entries, used = variant.held.entries, variant.held.cache_bytes
    title = (
        f"From {entries[0]:,} at the first generated token to {entries[-1]:,} at the last of "
        f"{len(entries):,}; then {used[-1]:,} bytes."
    )
    return Cell(f"{entries[-1]:,}", title=title)


def _improved(_: RunResult, metric: Metric, variant: VariantResult) -> Cell | None:
    moved, share = variant.perturbation, metric.read(variant)
    if moved is None or share is None:
        return None
    count = moved.compared_heads
    title = f"{round(share * count):,} of {count:,} query heads moved less than in the base."
    return Cell(f"{percent(share)} of {count:,}", title=title)


def time_cell(metric: Metric, variant: VariantResult) -> Cell | None:
    """A time of a variant that was timed alone, a step with its range; else None."""
    time, value = variant.time, metric.read(variant)
    if time is None or value is None:
        return None
    if metric.key == "step_ms":
        low, middle, high = map(_short, time.step_ms)
        return Cell(f"{middle} ({low} to {high})", value, title=f"n = {time.steps} steps.")
    if metric.key == "largest_batch":
        return Cell(f"{value:,.0f}, by {time.bound}", value)
    return Cell(_short(value), value)


def _short(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def alone_note(variants: Iterable[VariantResult]) -> str:
    """How the times of each variant alone were taken; empty without any."""
    times = [variant.time for variant in variants if variant.time]
    if not times:
        return ""
    most = max(time.others for time in times)
    return (
        f"Each method was then timed alone, {times[0].steps} steps each; a range is the quartiles. "
        f"Other processes took up to {percent(most)} of the processors meanwhile."
    )


# Of those whose cell says more than their number.
_CELLS: dict[str, Callable[[RunResult, Metric, VariantResult], Cell | None]] = {
    "answer": _answer,
    "first_difference": _first_difference,
    "prefill_peak": _peak,
    "decode_peak": _peak,
    "retained_entries": _kept,
    "cache_bytes": _bytes,
    "share": _share,
    "held": _held,
    "improved_heads": _improved,
    **{m.key: lambda _, *of: time_cell(*of) for m in METRICS.values() if m.unit in _TIME_UNITS},
}


def _warnings(result: RunResult) -> list[str]:
    """Each warning once, after the variants that have it."""
    named: dict[str, list[str]] = {}
    names = display_names(result.variants)
    for name, variant in zip(names, result.variants, strict=True):
        for warning in variant.receipt.warnings if variant.receipt else ():
            named.setdefault(warning, []).append(name)
    return [f"{', '.join(of)}: {warning}" for warning, of in named.items()]
