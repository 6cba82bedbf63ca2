"""A few saved runs side by side: which variants belong together, and what differs. No Gradio."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckv_core.experiment.regimes import regime_named, run_regimes
from ckv_core.experiment.summary import four_digits
from ckv_core.experiment.table import Cell, Column, Table, metric_column, text_column
from ckv_core.records.agreement import first_difference
from ckv_core.records.events import RunResult
from ckv_core.records.external_selection import OWN
from ckv_core.records.identity import Identity, identify, unique_specs
from ckv_core.records.metrics import METRICS, Metric
from ckv_core.records.outcomes import outcome_word
from ckv_core.records.records import RetainedSet, VariantResult
from ckv_core.records.variants import spec_without
from ui.looks.palette import looks_of
from ui.services.live_runs import RunSnapshot

MOST_BESIDE = 4
LISTED_POSITIONS = 100
TEXT_CHARS = 200
NONE = "none"
EQUAL = "equal, token by token"
REFERENCE = "the reference"
OTHER_PROMPTS = "The prompts differ, so tokens and kept sets are not compared; the metrics are."


@dataclass(frozen=True, slots=True)
class Pair:
    """One variant of each run; as many as have it.

    Attributes:
        spec: what they have in common.
        variants: per run; None where it has none.
        differs: per run, what it does not have in common with the others: `budget=64`.
    """

    spec: str
    variants: tuple[VariantResult | None, ...]
    differs: tuple[str, ...]

    @property
    def present(self) -> list[tuple[int, VariantResult]]:
        """Indices of the runs that have it, with their variants."""
        return [(at, variant) for at, variant in enumerate(self.variants) if variant is not None]


_Row = list[tuple[Identity, VariantResult] | None]
_Cells = dict[str, Cell]  # by key of their column


def pair_up(results: Sequence[RunResult]) -> list[Pair]:
    """Pairs in the order of their first variants, those of a single run among them.

    The same settings and budget are paired first, then the same settings, then the same method;
    of several, in their order. A variant that had not selected when its run ended is left out.
    """
    rows: dict[Identity, _Row] = {}
    for at, result in enumerate(results):
        for variant in result.variants:
            if variant.receipt is not None:
                identity = identify(variant)
                row = rows.setdefault(identity, [None] * len(results))
                row[at] = (identity, variant)
    merged = [*rows.values()]
    for key in (lambda row: _first(row)[0].settings, _method):
        merged = _merged(merged, key)
    specs = unique_specs(
        {identity: variant.spec for identity, variant in map(_first, rows.values())}
    )
    return [_pair(row, specs) for row in merged]


def _method(row: _Row) -> Hashable:
    """Of positions that were given, their label."""
    identity, variant = _first(row)
    return identity.settings.name, variant.label if variant.method == OWN else ""


def _merged(rows: Sequence[_Row], key: Callable[[_Row], Hashable]) -> list[_Row]:
    """Rows of one key joined where no run is in both."""
    merged: list[_Row] = []
    for row in rows:
        for at, other in enumerate(merged):
            apart = not any(a and b for a, b in zip(row, other, strict=True))
            if apart and key(row) == key(other):
                merged[at] = [a or b for a, b in zip(other, row, strict=True)]
                break
        else:
            merged.append(row)
    return merged


def _pair(row: _Row, specs: dict[Identity, str]) -> Pair:
    own = [{} if each is None else _parameters(each[0]) for each in row]
    there = [parameters for each, parameters in zip(row, own, strict=True) if each is not None]
    differing = [key for key in there[0] if len({each.get(key, "") for each in there}) > 1]
    first = specs[_first(row)[0]]
    return Pair(
        spec=spec_without(first, *differing) if differing else first,
        variants=tuple(None if each is None else each[1] for each in row),
        differs=tuple(
            ", ".join(f"{key}={parameters[key]}" for key in differing if key in parameters)
            for parameters in own
        ),
    )


def _parameters(identity: Identity) -> dict[str, str]:
    """All that decides the outcome as text, the budget first."""
    budget = {"budget": str(identity.budget)} if identity.budget else {}
    return budget | {key: str(value) for key, value in identity.settings.parameters}


def _first(row: _Row) -> tuple[Identity, VariantResult]:
    return next(each for each in row if each is not None)


def beside_value(runs: Sequence[RunSnapshot]) -> dict[str, Any]:
    """Value of the DataTable with a column per run: a row per setting, then one per method.

    Rows that are equal in all runs are marked so. A run that is not done has no outcomes here:
    it is never compared as if it were.
    """
    pieces, pairs = _common_pieces(runs), pair_up(_finished(runs))
    items = [*_setting_rows(runs), *(_outcome_row(pair, pieces) for pair in pairs)]
    settings = sum(item.is_equal and not item.look for item in items)
    equal = [item.name.text for item in items if item.is_equal and item.look]
    looks = dict(enumerate(item.look for item in items))
    columns: list[Column[_Beside]] = [
        text_column("name", "Setting or method", lambda item: item.name),
        *(
            text_column(
                _letter(at),
                f"{_letter(at)}: {run.created_at:%-d %b %Y, %H:%M} UTC",
                partial(_beside_cell, at),
                unit=_head_of(run),
                href=f"/run?id={run.slug}",
            )
            for at, run in enumerate(runs)
        ),
    ]
    table = Table(
        caption="Side by side",
        columns=columns,
        items=items,
        places=range(len(items)),
        equal=[item.is_equal for item in items],
        note=f"Equal in all runs: {', '.join([f'{settings} settings', *equal])}.",
        empty="Nothing differs.",
        file="side-by-side.csv",
    )
    return table.value(looks)


@dataclass(frozen=True, slots=True)
class _Beside:
    """A row: what it is about, a cell per run, and how its method is drawn."""

    name: Cell
    cells: list[Cell]
    is_equal: bool
    look: dict[str, str] | None = None


def _beside_cell(at: int, item: _Beside) -> Cell:
    return item.cells[at]


def _head_of(run: RunSnapshot) -> str:
    """Model and budget, and the state of a run that is not done."""
    budgets = ", ".join(filter(None, run.request.budgets))
    state = "" if run.state == "done" else f"not finished: {run.state}"
    return " · ".join(filter(None, [run.request.model, budgets, state]))


def _setting_rows(runs: Sequence[RunSnapshot]) -> list[_Beside]:
    described = [_settings(run) for run in runs]
    rows = []
    for name in dict.fromkeys(name for each in described for name in each):
        values = [each.get(name, "") for each in described]
        is_equal = all(value == values[0] for value in values)
        words = name.replace("_", " ").capitalize()
        rows.append(_Beside(Cell(words), [Cell(_plain(value)) for value in values], is_equal))
    return rows


def _outcome_row(pair: Pair, pieces: Sequence[str] | None) -> _Beside:
    """What one method came to in each run, its tokens beside the first run's that has it."""
    (_, base), *others = pair.present
    cells = []
    for variant, differs in zip(pair.variants, pair.differs, strict=True):
        if variant is None:
            cells.append(Cell(""))
            continue
        ids = zip_longest(base.token_ids, variant.token_ids[: len(variant.token_texts)])
        marks = [pieces is not None and variant is not base and one != own for one, own in ids]
        cells.append(
            Cell(
                "".join(variant.token_texts),
                title=differs,
                outcome=variant.outcome or "",
                pieces=[*zip(variant.token_texts, marks, strict=False)],
            )
        )
    is_equal = len(others) == len(pair.variants) - 1 and all(
        (v.token_ids, v.outcome) == (base.token_ids, base.outcome) for _, v in others
    )
    name = Cell(base.label, spec=pair.spec)
    return _Beside(name, cells, is_equal, looks_of([base])[0].value)


def _finished(runs: Sequence[RunSnapshot]) -> list[RunResult]:
    """The results of the runs, without variants where a run is not done."""
    return [run.result if run.state == "done" else replace(run.result, variants=[]) for run in runs]


def _common_pieces(runs: Sequence[RunSnapshot]) -> Sequence[str] | None:
    """The tokens of the one prompt that all runs have; None where the prompts differ."""
    prompts = [run.result.prompt for run in runs if run.result.prompt is not None]
    texts = {(prompt.token_ids, prompt.compressed_tokens) for prompt in prompts}
    return prompts[0].pieces if len(texts) == 1 and len(prompts) == len(runs) else None


def figures_value(runs: Sequence[RunSnapshot]) -> dict[str, Any]:
    """Value of the DataTable of figures that differ: a row per variant of several runs, and run.

    Tokens and kept sets are compared with the first such run's, where all runs have one prompt.
    """
    results = _finished(runs)
    pieces = _common_pieces(runs)
    head = run_regimes(*results).head
    rows: list[_Cells] = []
    equal, marks = [], []
    for pair in pair_up(results):
        cells = [_cells(pair, at, pieces) for at, _ in pair.present]
        if len(cells) < 2:
            continue
        if pieces and not any(pair.differs) and _are_equal(cells):
            equal.append(pair.spec)
            continue
        mark = regime_named(pair.present[0][1].method) if head else ""
        marks += [mark] * len(cells)
        for each, (at, _) in zip(cells, pair.present, strict=True):
            link = f"/run?id={runs[at].slug}"
            rows.append(each | {"run": Cell(_letter(at), href=link, title=runs[at].title)})
    notes = [
        f"Equal in all runs that have them: {', '.join(equal)}." if equal else "",
        "" if pieces else OTHER_PROMPTS,
    ]
    table = Table(
        caption="Figures that differ",
        columns=_COLUMNS,
        items=rows,
        file="differences.csv",
        head=head,
        note="\n".join(filter(None, notes)),
        empty="None: every variant wrote the same tokens and kept the same entries.",
        marks=marks,
    )
    return table.value()


def _read(key: str) -> Callable[[_Cells], Cell | None]:
    return lambda cells: cells.get(key)


_TEXTS = {
    "variant": "Variant",
    "run": "Run",
    "differs": "Differs in",
    "outcome": "Outcome",
    "first": "Differs from",
}
_EXTRA = {
    "layers": "Kept slots in both, by layer",
    "only_base": "Kept by the first run alone",
    "only_own": "Kept by this run alone",
}
_METRICS = [METRICS[key] for key in ("agreement", "final", "kl", "retained_entries")]
_COLUMNS: list[Column[_Cells]] = [
    *(text_column(key, label, _read(key)) for key, label in _TEXTS.items()),
    *(
        metric_column(metric, _read(metric.key), is_extra=at > 1)
        for at, metric in enumerate(_METRICS)
    ),
    text_column(
        "overlap",
        "Kept slots in both",
        _read("overlap"),
        unit="Jaccard, mean and least of a layer",
    ),
    *(text_column(key, label, _read(key), is_extra=True) for key, label in _EXTRA.items()),
]
_COMPARED = ("outcome", *(metric.key for metric in _METRICS))


def _are_equal(cells: Sequence[_Cells]) -> bool:
    """Whether runs have the same metrics, tokens and kept sets of a variant."""
    first, *others = cells
    return all(
        each["first"].text == EQUAL
        and ("overlap" not in each or each["overlap"].value == 1.0)
        and all(each[key].text == first[key].text for key in _COMPARED)
        for each in others
    )


def _letter(at: int) -> str:
    return "ABCD"[at]


def _cells(pair: Pair, at: int, pieces: Sequence[str] | None) -> _Cells:
    """One variant in one run; `pieces` are the prompt's tokens, None where the prompts differ."""
    (base_at, base), *_ = pair.present
    own = next(variant for run, variant in pair.present if run == at)
    cells = {
        "variant": Cell(pair.spec),
        "differs": Cell(pair.differs[at]),
        "outcome": Cell(outcome_word(own)),
        "first": Cell(""),
        **{metric.key: _metric_cell(own, metric) for metric in _METRICS},
    }
    if pieces is None or at == base_at:
        return cells
    at_token = first_difference(base.token_ids, own.token_ids)
    place = EQUAL if at_token is None else f"{_letter(base_at)} from token {at_token + 1:,} on"
    return cells | {
        "first": Cell(place, None if at_token is None else at_token + 1),
        **_kept(base.retained, own.retained, pieces),
    }


def _metric_cell(variant: VariantResult, metric: Metric) -> Cell:
    value = metric.read(variant)
    if variant.method == "full" and metric.better:
        return Cell(REFERENCE)
    if value is None:
        return Cell("")
    text = f"{value:.0%}" if metric.is_share else four_digits(value)
    if metric.unit == "entries":
        text = f"{value:,.0f}"
    return Cell(text, value)


def layer_overlap(left: RetainedSet, right: RetainedSet) -> list[float]:
    """[layers] Jaccard index of the kept slots of two sets of one shape; 1 where both are empty."""
    one, other = left.mask(), right.mask()
    both = (one & other).sum(axis=(1, 2))
    either = (one | other).sum(axis=(1, 2))
    shares = np.where(either == 0, 1.0, both / np.maximum(either, 1))
    return [float(share) for share in shares]


def _settings(run: RunSnapshot) -> dict[str, object]:
    request = run.request
    settings: dict[str, object] = {f.name: getattr(request, f.name) for f in fields(request)}
    model = run.result.model
    if model is not None:
        served = ("name", "sha256", "dtype", "device")
        settings |= {f"served {name}": str(getattr(model, name)) for name in served}
    return settings | {f"version of {k}": str(v) for k, v in run.result.environment.items()}


def _plain(value: object) -> str:
    """As text: every item of a list, each and a long text cut short."""
    if isinstance(value, tuple):
        return "\n".join(_cut(str(item)) for item in value) or NONE
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in sorted(value.items())) or NONE
    return _cut(str(value)) or NONE


def _cut(text: str) -> str:
    if len(text) <= TEXT_CHARS:
        return text
    return f"{text[:TEXT_CHARS]}… ({len(text):,} characters)"


def _kept(base: RetainedSet | None, own: RetainedSet | None, pieces: Sequence[str]) -> _Cells:
    """Nothing unless both have kept sets of one shape."""
    if base is None or own is None or base.mask().shape != own.mask().shape:
        return {}
    one, two = (np.logical_or.reduce(kept.mask(), axis=(0, 1)) for kept in (base, own))
    layers = layer_overlap(base, own)
    mean = sum(layers) / len(layers)
    text = "all" if mean == 1 else f"{mean:.1%}, least {min(layers):.1%}"
    return {
        "overlap": Cell(text, mean),
        "layers": Cell(" ".join(f"{share:.3f}" for share in layers)),
        "only_base": _listed(np.logical_and(one, ~two), pieces),
        "only_own": _listed(np.logical_and(two, ~one), pieces),
    }


def _listed(positions: NDArray[np.bool_], pieces: Sequence[str]) -> Cell:
    """How many positions no head of the other run keeps, and the first of them with their text."""
    at = np.flatnonzero(positions)
    shown = ", ".join(f"{place} {pieces[place]!r}" for place in at[:LISTED_POSITIONS])
    more = f", and {len(at) - LISTED_POSITIONS:,} more" if len(at) > LISTED_POSITIONS else ""
    return Cell(f"{len(at):,} ({shown}{more})" if len(at) else "0", len(at))
