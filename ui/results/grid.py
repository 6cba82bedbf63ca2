"""Several budgets as the grid, the chosen cell and the maps show them. No Gradio, no clock."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckv_core.base.percent import percent
from ckv_core.experiment.evidence import held
from ckv_core.experiment.regimes import run_regimes
from ckv_core.experiment.rounding import short
from ckv_core.experiment.sentences import budget_words, clipped, size
from ckv_core.experiment.summary import TIMES, time_cell
from ckv_core.experiment.verdict import Grid, Line, Point, read_grid, sizes
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import METRICS
from ckv_core.records.outcomes import State, full_of, outcome_word
from ckv_core.records.passages import spans_of
from ckv_core.records.records import Receipt, VariantResult
from ui.looks.palette import FULL_LOOK, Look, looks_of
from ui.results.answers import ENDS, differing, shortened
from ui.results.views import kept_value
from ui.services.live_runs import RunSnapshot

CELL_CHARS = 40
MOST_MAPS = 8  # of one budget; of more methods only the chosen one's map is drawn
_WAITING = "…"
_SAME: Mapping[State | None, str] = {"kept": "same text", "lost": "another text"}


def grid_value(snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Value of the OutcomeGrid; None until the points are known.

    The lines are in the order of the run while it goes on, then the smallest budget first.
    """
    shown = _Shown.of(snapshot)
    grid = shown.grid
    if not grid.lines:
        return None
    columns = [
        {"label": budget_words(budget), "size": _size(grid.receipts(at))}
        for at, budget in enumerate(grid.budgets)
    ]
    marks = run_regimes(snapshot.result).marks
    return {
        "columns": columns,
        "full": shown.full_row(),
        "lines": [
            {
                "name": line.name,
                "look": shown.look(line),
                "spec": line.first.variant.spec,
                "regime": marks[line.first.index] if marks else "",
                "cells": [shown.cell(line, at) for at in range(len(columns))],
                "least": None if line.smallest is None else columns[line.smallest],
                "never": f"not up to {columns[-1]['label']}" if line.states else "",
            }
            for line in grid.lines
        ],
        **shown.words(),
        "chosen": _chosen(grid).index,
    }


def chosen_value(snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Value of the ChosenCell; None before the run is over."""
    shown, result = _Shown.of(snapshot), snapshot.result
    grid, full = shown.grid, shown.full
    if not snapshot.is_final or not grid.lines:
        return None
    spans = spans_of(result.prompt, shown.answer) if result.prompt and shown.answer else []
    cells = [
        {
            "index": point.index,
            "name": line.name,
            "look": shown.look(line),
            "at": budget_words(grid.budgets[at]),
            "outcome": point.variant.outcome if grid.by_answer else "",
            "outcome_words": outcome_word(point.variant).capitalize(),
            "cost": _cost(result, point.variant, spans),
            **(_texts(point.variant.text, full.text) if full else {}),
        }
        for line, at, point in _cells(grid)
    ]
    return {"cells": cells, "chosen": _chosen(grid).index}


def points_kept_value(snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Value of the KeptTokens of several budgets: the methods at the chosen one.

    Of many methods and alphas it is the chosen point alone.
    """
    value = kept_value(snapshot) if snapshot.is_final else None
    if value is None:
        return None
    shown = _Shown.of(snapshot)
    more = {
        point.index: {"label": line.name, "look": shown.look(line), "group": at}
        for line, at, point in _cells(shown.grid)
    }
    chosen = _chosen(shown.grid).index
    known = {each["index"]: each for each in value["variants"]}
    # The first one is shown where the address names none.
    order = sorted(more, key=lambda index: more[index]["group"] != more[chosen]["group"])
    value["variants"] = [known[index] | more[index] for index in order if index in known]
    one = {"one": chosen} if len(shown.grid.lines) > MOST_MAPS else {}
    return value | one if value["variants"] else None


@dataclass(frozen=True, slots=True)
class _Shown:
    """A run as its grid is shown; `looks` of its lines by the index of their first point."""

    grid: Grid
    looks: dict[int, Look]
    answer: str
    full: VariantResult | None
    is_final: bool
    only_measured: bool

    @classmethod
    def of(cls, snapshot: RunSnapshot) -> "_Shown":
        request, grid = snapshot.request, read_grid(snapshot.result)
        looks = looks_of(line.first.variant for line in grid.lines)
        return cls(
            grid=grid.best_first if snapshot.is_final else grid,
            looks={line.first.index: look for line, look in zip(grid.lines, looks, strict=True)},
            answer=request.answer.strip(),
            full=full_of(snapshot.result.variants),
            is_final=snapshot.is_final,
            only_measured=not request.max_new_tokens,
        )

    def look(self, line: Line) -> dict[str, str]:
        return self.looks[line.first.index].value

    def full_row(self) -> dict[str, Any] | None:
        """None until the full cache has finished."""
        if (full := self.full) is None:
            return None
        text = self.answer if full.outcome == "answered" else full.text
        return {
            "name": full.label,
            "look": FULL_LOOK.value,
            "outcome": "" if full.outcome == "none" else full.outcome,
            "shown": clipped(text, 2 * CELL_CHARS),
            "label": "100 %",
            "size": _size([full.receipt] if full.receipt else []),
        }

    def cell(self, line: Line, at: int) -> dict[str, Any] | None:
        """None where the method was not run at this budget."""
        if (point := line.points[at]) is None:
            return None
        shown = self._written(point) or ("-" if self.is_final else _WAITING)
        place = budget_words(self.grid.budgets[at])
        word = outcome_word(point.variant) or _SAME.get(point.state, "not known")
        return {
            "index": point.index,
            "state": point.state or "",
            "shown": shown,
            "at": place,
            "words": f"{line.name} at {place}: {word}. {shown}",
            "least": at == line.smallest,
        }

    def _written(self, point: Point) -> str:
        """What a cell shows: the answer or the part that differs; else a metric."""
        variant = point.variant
        if self.only_measured:
            moved = METRICS["head"].read(variant)
            return "" if moved is None else short(moved)
        if variant.stopped is None or self.full is None:
            return ""
        if not self.grid.by_answer:
            return "" if variant.agreement is None else percent(variant.agreement)
        if point.state != "lost":
            written = clipped(
                self.answer or variant.text, CELL_CHARS
            )  # an imported result knows no answer
            return outcome_word(variant) if point.state == "cut" else written
        pieces = differing(variant.text.strip(), self.full.text.strip())
        places = [at for at, (text, kind) in enumerate(pieces) if kind and text != ENDS]
        if not places:
            return "ends early" if any(kind for _, kind in pieces) else "same text"
        return clipped("".join(text for text, _ in pieces[places[0] : places[-1] + 1]), CELL_CHARS)

    def words(self) -> dict[str, str]:
        """The head of the last column, and what stands below."""
        choose = "Choose a cell to see its answer and kept tokens."
        if self.only_measured:
            return {"least": "", "note": f"Each cell shows the mean head L1. {choose}"}
        if not self.grid.by_answer:
            shows = "Each cell shows the agreement with the full cache's text."
            solid = "Solid: the smallest budget that writes the same text."
            return {
                "least": "Smallest budget with the full cache's text",
                "note": f"{shows} {solid} {choose}",
            }
        shows = "Each cell shows what the model wrote where it differs from the full cache"
        expected = f"{clipped(self.answer, CELL_CHARS)} is expected." if self.answer else ""
        solid = "Solid: the smallest budget that still answers."
        return {
            "least": "Smallest budget that still answers",
            "note": f"{shows}; {expected} {solid} {choose}",
        }


def _cells(grid: Grid) -> Iterator[tuple[Line, int, Point]]:
    """Each point with its line and the place of its budget."""
    for line in grid.lines:
        for at, point in enumerate(line.points):
            if point is not None:
                yield line, at, point


def _chosen(grid: Grid) -> Point:
    """The best line's smallest budget that answers, else its largest one."""
    line = grid.lines[0]
    known = [point for point in line.points if point is not None]
    least = None if line.smallest is None else line.points[line.smallest]
    return least or known[-1]


def _size(receipts: Sequence[Receipt]) -> str:
    """`8.7 MiB`, or from what to what; empty before anything is selected."""
    if not receipts:
        return ""
    own, _, rest = size(*sizes(receipts)).partition(" of ")
    return f"{own} {rest.rpartition(' ')[2]}"


def _texts(text: str, full: str) -> dict[str, Any]:
    """Both texts in pieces, and where they are long the parts around the difference."""
    own, other = differing(text.strip(), full.strip()), differing(full.strip(), text.strip())
    found: dict[str, Any] = {"pieces": own, "full": [(full.strip(), "")]}
    if (cut := shortened(own)) != own:
        found["short"] = cut
    if (cut := shortened(other)) != other:
        found["short_full"] = [(part, "") for part, _ in cut]
    return found


def _cost(result: RunResult, variant: VariantResult, spans: Sequence[tuple[int, int]]) -> str:
    """Bytes, tokens per KV head, how much of the answer is still there, and its own times."""
    receipt, prompt, model = variant.receipt, result.prompt, result.model
    if receipt is None or prompt is None or model is None:
        return ""
    tokens = prompt.compressed_tokens
    kept = min(receipt.budget_tokens, tokens)
    parts = [f"{size(*sizes([receipt]))}.", f"{kept:,} of {tokens:,} tokens per KV head."]
    if found := held(variant, spans, model.evictable_layers):
        shares = (percent(found.mean), percent(found.chance))
        parts.append("{} of the answer's slots kept (random: {}).".format(*shares))
    times = ((METRICS[key].label, time_cell(METRICS[key], variant)) for key in TIMES)
    parts += [f"{label}: {cell.text} ms." for label, cell in times if cell]
    return " ".join([*parts, *receipt.warnings])
