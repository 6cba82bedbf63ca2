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


def settings_value(runs: Sequence[RunSnapshot]) -> dict[str, Any]:
    """Value of the DataTable of what differs in request, model and environment."""
    described = [_settings(run) for run in runs]
    names = dict.fromkeys(name for each in described for name in each)
    values = {name: [each.get(name, "") for each in described] for name in names}

    def value(at: int, name: str) -> str:
        return _plain(values[name][at])

    columns: list[Column[str]] = [
        text_column("name", "Setting", str),
        *(
            text_column(
                _letter(at),
                f"{_letter(at)}: {run.title or run.slug}",
                partial(value, at),
                unit=run.state,
            )
            for at, run in enumerate(runs)
        ),
    ]
    table = Table(
        caption="Settings that differ",
        columns=columns,
        items=[name for name, row in values.items() if any(value != row[0] for value in row)],
        file="settings.csv",
        empty="None: these runs have the same settings and ran on the same versions.",
    )
    return table.value()


def answers_value(runs: Sequence[RunSnapshot]) -> dict[str, Any]:
    """Value of the DataTable of results that differ: a row per variant and run that has it.

    Tokens and kept sets are compared with the first such run's, where all runs have one prompt.
    """
    results = [run.result for run in runs]
    prompts = [result.prompt for result in results if result.prompt is not None]
    texts = {(prompt.token_ids, prompt.compressed_tokens) for prompt in prompts}
    pieces = prompts[0].pieces if len(texts) == 1 and len(prompts) == len(runs) else None
    head = run_regimes(*results).head
    rows: list[_Cells] = []
    equal, marks = [], []
    for pair in pair_up(results):
        cells = [_cells(pair, at, pieces) for at, _ in pair.present]
        if len(cells) > 1 and pieces and not any(pair.differs) and _are_equal(cells):
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
        caption="Results that differ",
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
    "output": "Output",
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
        "output": Cell("".join(own.token_texts)),
        "first": Cell(""),
        **{metric.key: _metric_cell(own, metric) for metric in _METRICS},
    }
    if pieces is None or at == base_at:
        return cells
    at_token = first_difference(base.token_ids, own.token_ids)
    place = EQUAL if at_token is None else f"{_letter(base_at)} from token {at_token + 1:,} on"
    ids = zip_longest(base.token_ids, own.token_ids[: len(own.token_texts)])
    texts = zip(own.token_texts, ids, strict=False)
    return cells | {
        "first": Cell(place, None if at_token is None else at_token + 1),
        "output": replace(
            cells["output"], pieces=[(text, one != other) for text, (one, other) in texts]
        ),
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
