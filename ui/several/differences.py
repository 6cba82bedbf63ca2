"""A few saved runs side by side: which variants belong together, and what differs. No Gradio."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from ckv_core.experiment.table import Cell, Column, Table, text_column
from ckv_core.records.events import RunResult
from ckv_core.records.external_selection import OWN
from ckv_core.records.identity import Identity, identify, unique_specs
from ckv_core.records.records import VariantResult
from ckv_core.records.variants import spec_without
from ui.looks.palette import looks_of
from ui.services.live_runs import RunSnapshot

MOST_BESIDE = 4
TEXT_CHARS = 200
NONE = "none"


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
    finished = [
        run.result if run.state == "done" else replace(run.result, variants=[]) for run in runs
    ]
    prompts = {
        prompt and (prompt.token_ids, prompt.compressed_tokens)
        for prompt in (run.result.prompt for run in runs)
    }
    is_same_prompt = len(prompts) == 1 and None not in prompts
    items = [
        *_setting_rows(runs),
        *(_outcome_row(pair, is_same_prompt) for pair in pair_up(finished)),
    ]
    settings = sum(item.is_equal and not item.look for item in items)
    equal = [item.name.text for item in items if item.is_equal and item.look]
    looks = dict(enumerate(item.look for item in items))
    columns: list[Column[_Beside]] = [
        text_column("name", "Setting or method", lambda item: item.name),
        *(
            text_column(
                _letter(at),
                f"{_letter(at)}: {run.created_at:%-d %b %Y, %H:%M} UTC",
                partial(_cell, at),
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


def _cell(at: int, row: _Beside) -> Cell:
    return row.cells[at]


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


def _outcome_row(pair: Pair, is_same_prompt: bool) -> _Beside:
    """What one method came to in each run, its tokens beside the first run's that has it."""
    (_, base), *others = pair.present
    cells = []
    for variant, differs in zip(pair.variants, pair.differs, strict=True):
        if variant is None:
            cells.append(Cell(""))
            continue
        ids = zip_longest(base.token_ids, variant.token_ids[: len(variant.token_texts)])
        marks = [is_same_prompt and variant is not base and one != own for one, own in ids]
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


def _letter(at: int) -> str:
    return "ABCD"[at]


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
