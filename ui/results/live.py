"""Starting and following a run: its buttons, and views of it as updates of a results block."""

import logging
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

from ckv_core.errors import CkvError, StorageError
from ckv_core.records.events import TokensCounted
from ckv_core.records.run_request import RunRequest
from storage.records import ResultCounts
from storage.repository import RunMissingError, is_slug
from ui.accounts.turns import in_turn
from ui.components.modules import imported
from ui.results import views
from ui.results.answers import answers_value, follow_ups_value
from ui.results.block import OUTPUTS
from ui.results.next_steps import live_value, next_value
from ui.results.samples_area import reading_values
from ui.results.sweep_area import SAMPLED_LINE, sweep_values
from ui.results.views import state_value
from ui.server.route_answers import UNKNOWN_RUN
from ui.services.live_runs import RunSnapshot
from ui.services.previews import is_live
from ui.services.services import Services
from ui.shell.parts import SILENT, tried
from ui.tables.points import sampled_value, summary_value
from ui.tables.sample_list import read_cell

LOGGER = logging.getLogger(__name__)
READ_EVERY_S = 5.0  # reading a big run of many samples takes a second
ADDRESS_CHARS = 2_000
PERTURBATION_LINE = {"title": "Perturbation", "hint": "how far eviction moves the model's state"}
DIAGNOSTICS_LINE = {"title": "Diagnostics", "hint": "oracles, attention mass and bounds"}
FIGURES_LINE = {"title": "All figures", "hint": "every metric of every method, and CSV"}
NO_SUMMARY = {"empty": "The figures of every method appear here after a run."}
_OPENER = imported("assets/scripts/pages/history.js")
OPEN_RUN = f"(slug) => {_OPENER}.then((module) => module.default(slug))"
COUNT_TIMEOUT_S = 5.0


class Feed:
    """Remembers what one viewer was sent and leaves out what did not change."""

    def __init__(self, services: Services, cell: str = "") -> None:
        """Of a run of many samples, `cell` is the query of the score whose samples are shown."""
        self._services = services
        self._cell = dict(parse_qsl(str(cell)[:ADDRESS_CHARS], True))
        self._sent: dict[str, Any] = {}
        self._known: tuple[int, float] = (-1, -READ_EVERY_S)
        self._read: dict[str, Any] = {}
        self._is_sorted: bool | None = None  # as the run was when it was opened

    def updates(self, view: RunSnapshot, now: datetime) -> list[Any]:
        """One update per output of the block, in its order; those of other kinds are empty."""
        if view.counts is not None:
            values = self._read_results(view, view.counts)
        elif view.kind == "sweep":
            values = {"verdict": views.verdict_value(view)} | sweep_values(view)
        else:
            if self._is_sorted is None:
                self._is_sorted = view.is_final
            values = {"verdict": views.verdict_value(view)}
            values |= compare_values(view, sort=self._is_sorted)
            if values["answers"] and self._services.previews.may_start():
                values["answers"]["live"] = live_value(view)
                values["kept"] = values["kept"] and values["kept"] | {"why": is_live(view)}
        if values.get("chosen") and self._services.previews.may_start():
            values["chosen"]["opens"] = True
        values = values | {
            "verdict": (values.get("verdict") or {}) | state_value(view, now),
            "tabs": None if view.counts or (view.is_final and not view.result.variants) else {},
        }
        if self._services.is_guest:  # who can start nothing
            values |= {"steps": None, "further": None}
        return [self._changed(name, values.get(name)) for name in OUTPUTS]

    def _read_results(self, view: RunSnapshot, counts: ResultCounts) -> dict[str, Any]:
        """Tables and charts of many samples, read again every few seconds while it runs."""
        count, now = counts.done + counts.failed, time.monotonic()
        known, read_at = self._known
        if count != known and (view.is_final or now - read_at >= READ_EVERY_S):
            reading = self._services.studies.reading(view.slug)
            may_change = self._services.may_change(view.slug)
            cell = read_cell(reading, self._cell)
            self._read = reading_values(reading, cell, may_change=may_change)
            self._known = (count, now)
        return self._read

    def _changed(self, name: str, value: Any) -> Any:
        if name in self._sent and self._sent[name] == value:
            return gr.skip()
        self._sent[name] = value
        return value


def compare_values(snapshot: RunSnapshot, *, sort: bool = True) -> dict[str, Any]:
    """The area of one sample at one budget; `sort` puts the rows of methods that answered first."""
    diagnostics, charts = views.diagnostics_value(snapshot), views.perturbation_value(snapshot)
    summary = summary_value(snapshot.result, ended=snapshot.is_final)
    # A run that ended has no line over nothing.
    has_charts = bool(charts["charts"]) or not (snapshot.is_final and snapshot.request.reference)
    sampled = sampled_value(snapshot.result, snapshot.request.repeats)
    return {
        "answers": answers_value(snapshot, sort=sort),
        "follow_ups": follow_ups_value(snapshot),
        "kept": views.kept_value(snapshot),
        "sampled_line": SAMPLED_LINE if sampled else None,
        "sampled": sampled,
        "charts_line": PERTURBATION_LINE if has_charts else None,
        "charts": charts,
        "diagnostics_line": DIAGNOSTICS_LINE if diagnostics else None,
        "diagnostics": diagnostics,
        "figures_line": FIGURES_LINE if summary or not snapshot.is_final else None,
        "summary": summary or NO_SUMMARY,
        "memory": views.memory_value(snapshot),
        "steps": next_value(snapshot),
    }


def find_view(services: Services, slug: object) -> RunSnapshot:
    """The run that an address names, of one sample or many.

    Raises:
        CkvError: it names none.
    """
    if not is_slug(slug):
        raise StorageError(UNKNOWN_RUN)
    try:
        return services.view(str(slug))
    except RunMissingError:
        raise StorageError(UNKNOWN_RUN) from None


def find_run(services: Services, slug: object) -> RunSnapshot:
    """The run of one sample that an address names; CkvError where it names none."""
    view = find_view(services, slug)
    if view.counts is not None:
        raise StorageError(UNKNOWN_RUN)
    return view


async def follow(
    services: Services,
    slug: str,
    feed: Feed,
    after: Callable[[RunSnapshot], list[Any]],
    more: int,
) -> AsyncIterator[list[Any]]:
    """Yield updates of the block, then the `more` that `after` adds, until the run is over."""
    if not is_slug(slug):  # which the handler before has shown
        # Gradio empties the outputs of a generator that yields nothing.
        yield [gr.skip() for _ in range(len(OUTPUTS) + more)]
        return
    try:
        async for view in services.watch(slug):
            updates = await in_turn(feed.updates, view, datetime.now(UTC))
            yield [*updates, *await in_turn(after, view)]
    except CkvError as error:
        LOGGER.info("Stopped following %s: %s", slug, error)


def count_if_ready(services: Services, request: RunRequest) -> TokensCounted | None:
    """The prompt's tokens; None where the worker would first have to load the model."""
    status = services.model_status(request.model)
    if status is None or not status.ready:
        return None
    return services.count_tokens(request, COUNT_TIMEOUT_S)


def cancel_run(services: Services, slug: str) -> dict[str, Any]:
    """Ask for a run to stop; its tail shows when it has."""
    return tried(services.cancel_run, slug) if is_slug(slug) else SILENT
