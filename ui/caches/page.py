"""The page /caches: kept compressed caches, questions to them, their files."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import gradio as gr
from gradio.components import Component
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from ckv_core.base.percent import percent
from ckv_core.errors import CkvError
from ckv_core.experiment.kept_table import kept_table
from ckv_core.experiment.table import Cell, text_column
from ckv_core.records.kept_caches import KeptEntry
from ckv_core.records.run_request import MAX_NEW_TOKENS
from ui.accounts.turns import in_turn
from ui.components.base import DataTable, Notice, component
from ui.server.route_answers import IMPORT_TYPE, NO_STORE, import_route
from ui.services.caches import CacheJob, Caches
from ui.services.services import Services
from ui.settings import Settings
from ui.shell.parts import (
    AT_ONCE,
    SHARED,
    SILENT,
    Draft,
    late_dropdown,
    notice_value,
    number,
    refused,
    text,
    tried,
)

# --- kept caches as pages show them, and jobs on them as pages follow them -----------------


def job_sentence(job: CacheJob) -> str:
    """Where a job is, or how it ended; empty once it is done."""
    known = {"queued": "Waits for its turn.", "failed": job.reason, "cancelled": "Cancelled."}
    if job.state in known or job.progress is None:
        return known.get(job.state, "")
    share = "" if job.progress.fraction is None else f" {percent(job.progress.fraction)}"
    return f"{job.progress.stage.capitalize()}{share}: {job.progress.detail}"


async def follow_job(
    caches: Caches, job_id: object, shown: Callable[[CacheJob], dict[str, Any]]
) -> AsyncIterator[list[Any]]:
    """Updates of what is shown, of the button that started the job, and of Cancel, to its end.

    Nothing changes for a job that was refused; one that nobody remembers is over.
    """
    if not job_id:
        yield [gr.skip(), gr.skip(), gr.skip()]
        return
    try:
        async for job in caches.watch(job_id):
            goes_on = not job.is_final
            buttons = [gr.update(interactive=not goes_on), gr.update(interactive=goes_on)]
            yield [await in_turn(shown, job), *buttons]
    except CkvError:
        yield [gr.skip(), gr.update(interactive=True), gr.update(interactive=False)]


def caches_table(entries: Sequence[KeptEntry]) -> dict[str, Any]:
    """Value of the DataTable of kept caches, each with its file."""

    def download(entry: KeptEntry) -> Cell | None:
        href = f"/caches/file?name={quote(entry.name)}"
        return Cell("Download", href=href) if entry.record else None

    table = kept_table(entries)
    take = text_column("take", "Download", download, unit="safetensors")
    return replace(table, columns=[*table.columns, take]).value()


def answers_value(jobs: Sequence[CacheJob]) -> dict[str, Any]:
    return {
        "rows": [
            {
                "question": job.question,
                "text": job.text,
                "message": job_sentence(job),
                "tone": "error" if job.state == "failed" else "",
            }
            for job in jobs
        ]
    }


INTRO = (
    "## Kept caches\n"
    "Compress a text once, then ask many questions. The cache is kept under a name. Every question "
    "starts from the cache as it was kept, so no answer depends on another."
)
DEFAULT_NEW_TOKENS = 64

Answers = component(__file__, "answers")
"""Shows {"rows": [{"question", "text", "message", "tone"}]}, newest first."""

CacheFile = component(__file__, "cache_file")
"""Sends a safetensors file to /caches/import; the value is {"import_mib"}; triggers `imported`."""


class CachesPage:
    def __init__(self, services: Services, settings: Settings) -> None:
        self._services, self._device = services, settings.device
        gr.Markdown(INTRO, elem_classes=["section"])
        self.job = gr.Textbox(visible="hidden", elem_id="cache-job")
        self.table = DataTable(elem_id="caches")
        with gr.Row(equal_height=False, elem_classes=["ckv-card"]):
            self.cache = late_dropdown("cache", "Cache", "Select a cache.", scale=2)
            info, size = "About the context of that cache.", {"scale": 4, "min_width": 260}
            self.question = text("cache-question", "Question", info, (1, 4), **size)
            info = f"Written at most, 1 to {MAX_NEW_TOKENS:,}."
            self.tokens = number("cache-tokens", "New tokens", info, DEFAULT_NEW_TOKENS, scale=1)
        with gr.Row(elem_id="actions"):
            self.ask_button = gr.Button("Ask", variant="primary", elem_id="cache-ask", scale=0)
            self.cancel = gr.Button("Cancel", interactive=False, elem_id="cache-cancel", scale=0)
            self.notice = Notice(elem_id="cache-notice")
        self.answers = Answers(elem_id="cache-answers")
        with gr.Accordion("Delete or import", open=False, elem_id="cache-files"):
            with gr.Row():
                self.delete_button = gr.Button("Delete…", elem_id="cache-delete", scale=0)
            with gr.Row(visible=False, elem_id="confirm") as self.confirm:
                self.sure = Notice(elem_id="confirm-text")
                self.yes = gr.Button("Delete it", variant="stop", elem_id="confirm-yes", scale=0)
                self.no = gr.Button("Keep it", elem_id="confirm-no", scale=0)
            self.file = CacheFile({"import_mib": settings.limits.body_mib}, elem_id="cache-file")

    def wire(self, page: gr.Blocks) -> None:
        listed: list[Component] = [self.table, self.cache, self.answers, self.notice]
        opened = page.load(self.open, None, listed, **AT_ONCE)
        Draft("/caches", [self.question, self.tokens]).restore_after(opened)
        self.file.imported(self.refresh, [self.cache], listed, **AT_ONCE)
        self.cache.input(self.choose, [self.cache], [self.answers], **AT_ONCE)
        followed = [self.answers, self.ask_button, self.cancel]
        inputs = [self.cache, self.question, self.tokens]
        asking = [self.ask_button.click, self.question.submit]
        started = gr.on(asking, self.ask, inputs, [self.job, self.notice], **AT_ONCE)
        started.then(self.tail, [self.job, self.cache], followed, **SHARED)
        self.cancel.click(self.stop, [self.job], [self.notice], **AT_ONCE)
        done = [*listed, self.confirm]
        sure = [self.confirm, self.sure]
        self.delete_button.click(self.ask_whether, [self.cache], sure, **AT_ONCE)
        self.yes.click(self.delete, [self.cache], done, **AT_ONCE)
        self.no.click(lambda: gr.update(visible=False), None, [self.confirm], **AT_ONCE)

    # --- handlers -----------------------------------------------------------------------

    def open(self, request: gr.Request) -> list[Any]:
        """The list as it is now, and the cache that the address names."""
        return self._listed(str(request.query_params.get("name", "")) if request else "")

    def refresh(self, name: object) -> list[Any]:
        return self._listed(str(name or ""))

    def choose(self, name: object) -> dict[str, Any]:
        return self._answers(str(name or ""))

    def ask(self, name: object, question: object, tokens: object) -> list[Any]:
        """Have a question answered; the sentence is why not."""
        if not name:
            return ["", notice_value("Select a cache.", "error")]
        count = int(tokens) if isinstance(tokens, int | float) and abs(tokens) < 10**6 else 0
        try:
            job = self._services.caches.ask(
                str(name or ""), str(question or ""), count, self._device
            )
        except CkvError as error:
            fields = {"question": self.question, "max_new_tokens": self.tokens}
            return ["", refused(error, fields)]
        return [job, SILENT]

    async def tail(self, job_id: object, name: object) -> AsyncIterator[list[Any]]:
        def shown(_: CacheJob) -> dict[str, Any]:
            return self._answers(str(name or ""))

        async for updates in follow_job(self._services.caches, job_id, shown):
            yield updates

    def stop(self, job_id: object) -> dict[str, Any]:
        return tried(self._services.caches.cancel, job_id)

    def ask_whether(self, name: object) -> list[Any]:
        """Before a file is gone for good."""
        if not name:
            return [gr.update(visible=False), SILENT]
        return [gr.update(visible=True), notice_value(f"Delete {name} for good?", "warn")]

    def delete(self, name: object) -> list[Any]:
        try:
            self._services.caches.delete(str(name or ""))
        except CkvError as error:
            notice = notice_value(str(error), "error")
            return [gr.skip(), gr.skip(), gr.skip(), notice, gr.update(visible=False)]
        notice = notice_value(f"{name} is deleted.")
        return [*self._listed("")[:-1], notice, gr.update(visible=False)]

    def _listed(self, name: str) -> list[Any]:
        try:
            entries = self._services.caches.entries()
        except CkvError as error:
            return [None, gr.skip(), None, notice_value(str(error), "error")]
        names = [entry.name for entry in entries]
        chosen = name if name in names else next(iter(names), None)
        choices = gr.update(choices=names, value=chosen)
        return [caches_table(entries), choices, self._answers(chosen or ""), SILENT]

    def _answers(self, name: str) -> dict[str, Any]:
        try:
            return answers_value(self._services.caches.answers(name))
        except CkvError:
            return answers_value([])


# --- files ------------------------------------------------------------------------------


def cache_routes(services: Services) -> list[Route]:
    """Both; the guard in front of them knows who asks and caps what is sent."""

    def file(request: Request) -> Response:
        path = services.caches.path(request.query_params.get("name", ""))
        name = path.name.replace(" ", "-")
        return FileResponse(path, headers=NO_STORE, media_type=IMPORT_TYPE, filename=name)

    def take(name: str, data: bytes) -> dict[str, Any]:
        services.caches.add(name, data)
        return {"message": f"{name} is kept."}

    return [Route("/caches/file", file), import_route("/caches/import", take)]
