"""Starting and following a run: its buttons, and snapshots as updates of a results block."""

import logging
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import gradio as gr

from ckv_core.errors import CkvError, StorageError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.worker.messages import TokensCounted
from storage.records import Lineage
from storage.repository import RunMissingError, is_slug
from ui.accounts.turns import in_turn
from ui.components.modules import imported
from ui.components.notice import RunNotice
from ui.results import chart_views, views
from ui.results.block import ResultsBlock
from ui.results.cards import follow_ups_value, generations_value
from ui.server.route_answers import UNKNOWN_RUN
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.shell.parts import SILENT, tried
from ui.tables.summary import summary_value

LOGGER = logging.getLogger(__name__)
NO_SUMMARY = {"empty": "The figures of every variant appear here after a run."}
# Reload then opens the Run page, which follows the same run.
_ADDRESS = imported("assets/scripts/pages/history.js")
SHOW_ADDRESS = f"(slug) => {_ADDRESS}.then((module) => module.default(slug))"
COUNT_TIMEOUT_S = 5.0


class Feed:
    """Remembers what one viewer was sent and leaves out what did not change."""

    def __init__(self, block: ResultsBlock) -> None:
        self._block = block
        self._sent: dict[str, Any] = {}

    @property
    def width(self) -> int:
        return len(self._block.outputs)

    def updates(self, snapshot: RunSnapshot, now: datetime) -> list[Any]:
        """One update per output of the block, in its order."""
        values: dict[str, Any] = {
            "verdict": views.verdict_value(snapshot),
            "status": views.status_value(snapshot, now),
            "links": views.links_value(snapshot),
            "summary": summary_value(snapshot.result, ended=snapshot.is_final) or NO_SUMMARY,
            "generations": generations_value(snapshot),
            "follow_ups": follow_ups_value(snapshot),
            "kept": views.kept_value(snapshot),
            "charts": chart_views.perturbation_value(snapshot),
            "diagnostics": chart_views.diagnostics_value(snapshot),
        }
        return [self._changed(name, value) for name, value in values.items()]

    def _changed(self, name: str, value: Any) -> Any:
        if name in self._sent and self._sent[name] == value:
            return gr.skip()
        self._sent[name] = value
        return value


def find_run(services: Services, slug: object) -> RunSnapshot:
    """The run that an address names.

    Raises:
        CkvError: it names none.
    """
    if not is_slug(slug):
        raise StorageError(UNKNOWN_RUN)
    try:
        return services.snapshot(str(slug))
    except RunMissingError:
        raise StorageError(UNKNOWN_RUN) from None


def made_from(
    services: Services,
    source: object,
    asked: CompareRequest,
    through_form: Callable[[CompareRequest], CompareRequest],
) -> Lineage | None:
    """Where a request comes from that was typed into a form filled in from a run.

    `source` names that run, and a client may send anything; `through_form` is what the form gives
    that is filled in from a request.

    Returns:
        None if there is no such run (any more); else a rerun, or a fork if something was changed.
    """
    try:
        parent = find_run(services, source)
    except CkvError:
        return None
    try:
        # A form drops what it has no control for, so that is compared with the parent's own.
        same = [(each.kind, each.own_indices, each.analysis) for each in (parent.request, asked)]
        is_same = same[0] == same[1] and through_form(parent.request) == asked
    except CkvError:
        is_same = False  # an imported run may hold what no form gives
    return Lineage(parent.slug, "rerun" if is_same else "fork")


async def follow(
    services: Services,
    slug: str,
    feed: Feed,
    after: Callable[[RunSnapshot], list[Any]],
    more: int,
) -> AsyncIterator[list[Any]]:
    """Yield updates of the block, then the `more` that `after` adds, until the run is over.

    Changes nothing for a slug that names no run: the handler before has said so.
    """
    if not is_slug(slug):
        # Gradio empties the outputs of a generator that yields nothing.
        yield [gr.skip() for _ in range(feed.width + more)]
        return
    try:
        async for snapshot in services.watch(slug):
            updates = await in_turn(feed.updates, snapshot, datetime.now(UTC))
            yield [*updates, *await in_turn(after, snapshot)]
    except CkvError as error:
        LOGGER.info("Stopped following %s: %s", slug, error)


def build_run_row() -> tuple[gr.Button, gr.Button, gr.Button, gr.HTML]:
    """Run, Cancel, New and the line beside them; call inside a Blocks context."""
    with gr.Row(elem_id="actions"):
        run = gr.Button("Run", variant="primary", elem_id="run", min_width=140, scale=0)
        gr.HTML("<kbd>Ctrl</kbd>+<kbd>Enter</kbd>", elem_classes=["bare", "run-keys"])
        cancel = gr.Button("Cancel", interactive=False, elem_id="cancel", min_width=110, scale=0)
        new = gr.Button("New", elem_id="new", min_width=80, scale=0)
        notice = RunNotice(elem_id="notice")
    return run, cancel, new, notice


def count_if_ready(services: Services, request: CompareRequest) -> TokensCounted | None:
    """The prompt's tokens; None where the worker would first have to load the model."""
    status = services.model_status(request.model)
    if status is None or not status.ready:
        return None
    return services.count_tokens(request, COUNT_TIMEOUT_S)


def run_buttons(snapshot: RunSnapshot) -> list[Any]:
    final = snapshot.is_final
    return [gr.update(interactive=final), gr.update(interactive=not final)]


def cancel_run(services: Services, slug: str) -> dict[str, Any]:
    """Ask for a run to stop; its tail shows when it has."""
    return tried(services.cancel_run, slug) if is_slug(slug) else SILENT
