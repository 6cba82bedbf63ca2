"""The page /several?ids=a,b: saved runs as one table, and what differs between a few of them."""

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError, ConfigError
from ckv_core.experiment.points import Points
from ckv_core.experiment.points_table import points_json, points_table
from ckv_core.experiment.runs import together
from ckv_core.experiment.sentences import budget_words
from ckv_core.experiment.table import Cell, Column, Table, text_column
from ckv_core.records.events import RunResult
from ckv_core.records.external_selection import OWN
from ckv_core.records.identity import Identity, identify, unique_specs
from ckv_core.records.records import VariantResult
from ckv_core.records.variants import spec_without
from storage.repository import is_slug
from ui.charts.points import POINTS_CHART
from ui.components.base import DataTable, Notice, RunCharts
from ui.looks.palette import looks_of
from ui.results.block import RESULTS
from ui.results.figure_routes import drawn
from ui.results.views import several_value
from ui.server.route_answers import NO_STORE, routes_of
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.shell.parts import AT_ONCE, SILENT, TO_RUNS, Tone, notice_value
from ui.tables.points import look_values, points_csv

# --- a few saved runs side by side: which variants belong together, and what differs ---

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
        *(_outcome_row(pair, is_same_prompt, runs) for pair in pair_up(finished)),
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
    budgets = ", ".join(budget_words(each) for each in run.request.budgets if each)
    state = "" if run.state == "done" else f"not finished: {run.state}"
    return " · ".join(filter(None, [run.request.model, budgets, state]))


# Settings that the form calls by another name.
_LABELS = {
    "answer": "Expected answer",
    "answer_prefix": "Answer begins with",
    "analysis": "Diagnostics",
    "context": "Text",
    "follow_ups": "Follow-up questions",
    "max_new_tokens": "New tokens",
    "own_indices": "External selections",
    "protect": "Protected text",
    "reference": "Compare with the full cache",
    "repeats": "Sampled texts",
    "time": "Time each method",
    "variants": "Methods",
}


def _setting_rows(runs: Sequence[RunSnapshot]) -> list[_Beside]:
    described = [_settings(run) for run in runs]
    rows = []
    for name in dict.fromkeys(name for each in described for name in each):
        values = [each.get(name, "") for each in described]
        is_equal = all(value == values[0] for value in values)
        words = _LABELS.get(name, name.replace("_", " ").capitalize())
        rows.append(_Beside(Cell(words), [Cell(_plain(value)) for value in values], is_equal))
    return rows


def _outcome_row(pair: Pair, is_same_prompt: bool, runs: Sequence[RunSnapshot]) -> _Beside:
    """What one method came to in each run, its tokens beside the first run's that has it.

    A cell leads to its run, where that method is chosen.
    """
    (_, base), *others = pair.present
    cells = []
    for run, variant, differs in zip(runs, pair.variants, pair.differs, strict=True):
        if variant is None:
            cells.append(Cell(""))
            continue
        ids = zip_longest(base.token_ids, variant.token_ids[: len(variant.token_texts)])
        marks = [is_same_prompt and variant is not base and one != own for one, own in ids]
        cells.append(
            Cell(
                "".join(variant.token_texts),
                title=differs,
                href=f"/run?id={run.slug}#variant={run.result.variants.index(variant)}",
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
    settings["budgets"] = tuple(map(budget_words, request.budgets))
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


# --- which saved runs an address names, what they come to together, and their files and chart ---

MAX_RUNS = 100


def read_slugs(text: object) -> list[str]:
    """The names of a list, each once.

    Raises:
        ConfigError: one cannot name a run, or there are too few or too many.
    """
    parts = re.split(r"[\s,]+", text) if isinstance(text, str) else []
    slugs = list(dict.fromkeys(filter(None, parts)))
    if not 2 <= len(slugs) <= MAX_RUNS:
        raise ConfigError(
            f"Choose 2 to {MAX_RUNS} different runs in the list of runs; the address names "
            f"{len(slugs)}."
        )
    for slug in slugs:
        if not is_slug(slug):
            raise ConfigError(f"{slug[:40]!r} is not the name of a run.")
    return slugs


def load_runs(services: Services, text: object) -> list[RunSnapshot]:
    """The runs of a list of names, as far as the reader may see them.

    Raises:
        CkvError: a name is wrong, or a run is not there.
    """
    return [services.snapshot(slug) for slug in read_slugs(text)]


def in_order(runs: Sequence[RunSnapshot]) -> list[RunSnapshot]:
    """The runs, oldest first, as means over prompts take them.

    Raises:
        ConfigError: one is not done.
    """
    for run in runs:
        if run.state != "done" or run.result.model is None:
            raise ConfigError(f"Run {run.slug} is not done; leave it out or wait for its end.")
    return sorted(runs, key=lambda run: run.created_at)


def take_together(runs: Sequence[RunSnapshot]) -> Points:
    """Finished runs over their prompts, whichever of them each variant is in.

    Raises:
        ConfigError: says why the runs cannot be taken together.
    """
    found = together([run.result for run in in_order(runs)])
    if not any(row.place for row in found.rows):
        raise ConfigError("The runs have the full cache alone; add methods to compare with it.")
    if len({run.request.max_new_tokens for run in runs}) > 1:
        moved = "The runs generate different numbers of tokens, which moves agreement."
        return replace(found, notes=[*found.notes, moved])
    return found


BASE = "/several/{slugs}"
CHARTS = {POINTS_CHART.name: POINTS_CHART}
TABLES: dict[str, Callable[[Points], str]] = {"means": points_csv}


def several_routes(services: Services) -> list[Route]:
    """All of them; each answers GET and runs in a worker thread."""

    def runs(request: Request) -> list[RunSnapshot]:
        return in_order(load_runs(services, request.path_params["slugs"]))

    def document(found: list[RunSnapshot], _: Request) -> Response:
        return JSONResponse(points_json(together([run.result for run in found])), headers=NO_STORE)

    def source(request: Request) -> Points:
        return take_together(runs(request))

    files = drawn(CHARTS, TABLES, "ckv-several")
    return routes_of(BASE, source, files) + routes_of(BASE, runs, {"means.json": document})


INTRO = "## Several runs\nWhich method, at which budget, over the prompts of the chosen runs."
TABLE_TEXT = (
    "### The runs together\nRuns of one prompt are one sample: a method that is in several of "
    "them counts once, by the newest. The ? at a column says what it means."
)
CHART_TEXT = "### Against the budget\nBars are the 95 % intervals."
BESIDE_TEXT = (
    "### Side by side\nRun A is the baseline; text that differs from it is underlined. A cell "
    "opens that method in its run. An unfinished run has no outcomes."
)


class SeveralPage:
    def __init__(self, services: Services) -> None:
        self._services = services
        gr.Markdown(INTRO, elem_classes=["section"])
        self.notice = Notice(elem_id="several-notice")
        with gr.Column(elem_id="several-results", elem_classes=RESULTS):
            with gr.Column(visible=False) as self.beside:
                self.differences = DataTable(elem_id="several-beside", section=BESIDE_TEXT)
            with gr.Column(visible=False) as self.together:
                self.table = DataTable(elem_id="several-table", section=TABLE_TEXT)
                self.charts = RunCharts(elem_id="several-charts", section=CHART_TEXT)

    def wire(self, page: gr.Blocks) -> None:
        together = [self.together, self.table, self.charts]
        beside = [self.beside, self.differences]
        page.load(self.open, None, [self.notice, *together, *beside], **AT_ONCE)

    def open(self, request: gr.Request) -> list[Any]:
        """Show the runs that the address names, or say why not.

        `view=table` is their means alone, `view=beside` what differs between a few of them.
        """
        try:
            runs = load_runs(self._services, request.query_params.get("ids", ""))
        except CkvError as error:
            hidden = [gr.update(visible=False), gr.skip(), gr.skip()]
            refusal = notice_value(str(error), "error", (TO_RUNS,))
            return [refusal, *hidden, *hidden[:2]]
        view = request.query_params.get("view", "")
        beside: list[Any] = [gr.update(visible=False), gr.skip()]
        if len(runs) <= MOST_BESIDE:
            beside = [gr.update(visible=True), beside_value(runs)]
        shown = [*_together(runs), *beside]
        if view == "table" and len(runs) <= MOST_BESIDE:
            shown[4:] = [gr.update(visible=False), gr.skip()]
        elif view == "beside" and len(runs) <= MOST_BESIDE:
            shown[:4] = [SILENT, gr.update(visible=False), gr.skip(), gr.skip()]
        return shown


def _together(runs: Sequence[RunSnapshot]) -> list[Any]:
    """The notice and the table of all runs; runs without one still differ."""
    try:
        found = take_together(runs)
    except CkvError as error:
        notice = notice_value(f"No common table: {error}", "warn", (TO_RUNS,))
        return [notice, gr.update(visible=False), gr.skip(), gr.skip()]
    slugs = ",".join(run.slug for run in runs)
    files = [
        (f"Means as {kind.upper()}", f"/several/{slugs}/means.{kind}") for kind in ("csv", "json")
    ]
    n = found.n
    summary = f"{n} prompt{'' if n == 1 else 's'}, {found.model}."
    tone: Tone = "warn" if found.notes else ""
    return [
        notice_value("\n".join([summary, *found.notes]), tone, (*files, TO_RUNS)),
        gr.update(visible=True),
        points_table(found, "The runs together", file="several-runs.csv").value(look_values(found)),
        several_value(slugs, found),
    ]
