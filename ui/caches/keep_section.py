"""The section of the Run page that keeps the cache of one variant."""

from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote

import gradio as gr
from gradio.blocks import Block

from ckv_core.errors import CkvError, ConfigError, about
from ckv_core.records.outcomes import writes_same_text
from ui.caches.page import follow_job, job_sentence
from ui.components.base import Fold, Notice, fold_column
from ui.results.live import find_run
from ui.services.caches import CacheJob
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.shell.parts import (
    AT_ONCE,
    SHARED,
    SILENT,
    late_dropdown,
    notice_value,
    refused,
    text,
    tried,
)

TO_CACHES = "Ask it on the page Caches"
HELP_TEXT = (
    "One method compresses the context once more. It reuses the prefill if the worker still has "
    "it. The kept cache then answers many questions on the page Caches."
)

LINE = {"title": "Keep a cache", "hint": "compress the context once, ask it many times"}


class KeepSection:
    """Shown below a finished comparison of the scenario context-only."""

    def __init__(self, services: Services) -> None:
        self._services = services
        with fold_column():
            line = Fold(elem_id="keep-line")
            gr.Markdown(HELP_TEXT)
            self.job = gr.Textbox(visible="hidden", elem_id="keep-job")
            with gr.Row(equal_height=False):
                info = "Methods that evict while they generate are not offered."
                self.variant = late_dropdown("keep-variant", "Method", info, scale=3)
                info = "Up to 64 letters, digits, spaces and . _ + -"
                self.name = text("keep-name", "Name", info, scale=3, min_width=220)
            with gr.Row():
                self.keep_button = gr.Button("Keep this cache", elem_id="keep-run", scale=0)
                self.cancel = gr.Button("Cancel", interactive=False, elem_id="keep-stop", scale=0)
                self.notice = Notice(elem_id="keep-notice")
        self.outputs: list[Block] = [line, self.variant]

    def wire(self, slug: gr.Textbox) -> None:
        followed = [self.notice, self.keep_button, self.cancel]
        self.keep_button.click(
            self.keep, [slug, self.variant, self.name], [self.job, self.notice], **AT_ONCE
        ).then(self.tail, [self.job], followed, **SHARED)
        self.cancel.click(self.stop, [self.job], [self.notice], **AT_ONCE)

    def open(self, run: RunSnapshot | None) -> list[Any]:
        """Offer the variants of a run that has caches of a context alone."""
        names = [] if run is None else self._variants(run)
        if run is None or not names:
            return [gr.skip(), gr.skip()]
        return [LINE, gr.update(choices=names, value=_offered(run, names))]

    def _variants(self, run: RunSnapshot) -> list[str]:
        """SPECs of those that can be kept."""
        is_fit = run.request.scenario == "context-only" and run.request.kind == "compare"
        if not (is_fit and run.is_final and self._services.may_change(run.slug)):
            return []
        try:  # an imported run may hold what no form gives
            specs = run.request.specs
        except CkvError:
            return []
        return [
            variant
            for variant, spec in zip(run.request.variants, specs, strict=False)
            if spec.policy is None
        ]

    # --- handlers -----------------------------------------------------------------------

    def keep(self, slug: object, variant: object, name: object) -> list[Any]:
        """Start to keep it; the sentence is why not."""
        try:
            run = find_run(self._services, slug)
            names = self._variants(run)
            if variant not in names:
                with about("variant"):
                    raise ConfigError("Choose one of the run's methods.")
            index = run.request.variants.index(str(variant))
            wanted = str(name or "").strip()
            return [self._services.caches.keep(run.request, index, wanted), SILENT]
        except CkvError as error:
            return ["", refused(error, {"name": self.name, "variant": self.variant})]

    async def tail(self, job_id: object) -> AsyncIterator[list[Any]]:
        async for updates in follow_job(self._services.caches, job_id, _job_notice):
            yield updates

    def stop(self, job_id: object) -> dict[str, Any]:
        return tried(self._services.caches.cancel, job_id)


def _offered(run: RunSnapshot, names: Sequence[str]) -> str:
    """The one with the smallest cache of those that keep the answer, else the full cache's text.

    The first where none does: nothing of this run speaks for another.
    """
    results = zip(run.request.variants, run.result.variants, strict=False)
    fit = [(spec, each, each.receipt) for spec, each in results if spec in names]
    answers = any(each.answer_found is not None for _, each, _ in fit)
    good = [
        (receipt.cache_bytes, spec)
        for spec, each, receipt in fit
        if receipt and (each.outcome == "answered" if answers else writes_same_text(each))
    ]
    return min(good)[1] if good else names[0]


def _job_notice(job: CacheJob) -> dict[str, Any]:
    if job.state == "done":
        return notice_value(
            f"{job.name} is kept.", "good", [(TO_CACHES, f"/caches?name={quote(job.name)}")]
        )
    return notice_value(job_sentence(job), "error" if job.state == "failed" else "")
