"""Follows a run and turns its snapshots into updates of a results block."""

import logging
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import gradio as gr

from ckv_core.errors import CkvError, StorageError
from storage.repository import RunMissingError
from ui import views
from ui.pages.parts import SILENT, said
from ui.pages.results import ResultsBlock, figures_of, head_grid
from ui.routes import is_slug
from ui.services import RunSnapshot, Services

LOGGER = logging.getLogger(__name__)
UNKNOWN_RUN = "There is no run of this name; see the list of runs for those that are saved."


class Feed:
    """Remembers what one viewer was sent and leaves out what did not change.

    Charts are drawn anew by each update, so this is what keeps their zoom.
    """

    def __init__(self, block: ResultsBlock) -> None:
        self._block = block
        self._sent: dict[str, Any] = {}

    @property
    def width(self) -> int:
        """How many updates there are at a time."""
        return len(self._block.outputs)

    def updates(self, snapshot: RunSnapshot, now: datetime) -> list[Any]:
        """One update per output of the block, in its order."""
        final = snapshot.is_final
        values: dict[str, Any] = {
            "status": views.status_value(snapshot, now),
            "links": {"slug": snapshot.slug, "files": bool(snapshot.result.variants)},
            "summary": views.summary_value(snapshot.result),
            "generations": views.generations_value(snapshot),
            "kept": views.kept_value(snapshot),
        }
        updates = [self._changed(name, value) for name, value in values.items()]
        updates += self._charts(snapshot, final=final)
        return updates

    def _changed(self, name: str, value: Any) -> Any:
        if name in self._sent and self._sent[name] == value:
            return gr.skip()
        self._sent[name] = value
        return value

    def _charts(self, snapshot: RunSnapshot, *, final: bool) -> list[Any]:
        result = snapshot.result
        measured = sum(v.perturbation is not None for v in result.variants)
        wanted = sum(v.method != "full" for v in result.variants)
        ready = measured > 0 and (final or measured == wanted)
        key = (snapshot.slug, measured if ready else 0)
        if self._sent.get("charts") == key:
            return [gr.skip() for _ in self._block.charts]
        self._sent["charts"] = key
        return figures_of(result if ready else None)


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
            yield [*feed.updates(snapshot, datetime.now(UTC)), *after(snapshot)]
    except CkvError as error:
        LOGGER.info("Stopped following %s: %s", slug, error)


def cancel_run(services: Services, slug: str) -> dict[str, Any]:
    """Ask for a run to stop; its tail shows when it has."""
    if not is_slug(slug):
        return SILENT
    try:
        services.cancel_run(slug)
    except CkvError as error:
        return said(str(error), "error")
    return SILENT


def pick_heads(services: Services, slug: str, index: object) -> Any:
    """The head grid of another variant."""
    if not is_slug(slug):
        return None
    try:
        return head_grid(services.snapshot(slug).result, index)
    except CkvError:
        return None
