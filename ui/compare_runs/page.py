"""The page /compare-runs?ids=a,b: saved runs side by side, their differences first."""

from typing import Any

import gradio as gr

from ckv_core.errors import CkvError, StorageError
from ui.compare_runs.differences import differences_value
from ui.components.notice import Notice
from ui.components.run_differences import RunDifferences
from ui.results.live import find_run
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.shell.parts import AT_ONCE, SILENT, TO_RUNS, said

MOST_RUNS = 4


class CompareRunsPage:
    def __init__(self, services: Services) -> None:
        self._services = services
        gr.Markdown(
            "## Compare runs\nThe first run is the baseline. Variants of the same method are "
            "paired, those of equal settings first. Differences are highlighted.",
            elem_classes=["section"],
        )
        self.notice = Notice(elem_id="notice")
        self.differences = RunDifferences(elem_id="differences")

    def wire(self, page: gr.Blocks) -> None:
        page.load(self.open, None, [self.notice, self.differences], **AT_ONCE)

    def open(self, request: gr.Request) -> list[Any]:
        """Compare the runs that the address names, or say why not."""
        asked = request.query_params.get("ids", "") if request else ""
        try:
            return [SILENT, differences_value(self._runs(asked))]
        except CkvError as error:
            return [said(str(error), "error", (TO_RUNS,)), None]

    def _runs(self, asked: str) -> list[RunSnapshot]:
        slugs = list(dict.fromkeys(slug.strip() for slug in asked.split(",") if slug.strip()))
        if not 2 <= len(slugs) <= MOST_RUNS:
            raise StorageError(
                f"Choose 2 to {MOST_RUNS} different runs in the list of runs; the address names "
                f"{len(slugs)}."
            )
        return [find_run(self._services, slug) for slug in slugs]
