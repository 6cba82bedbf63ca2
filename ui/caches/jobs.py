"""Kept caches as pages show them, and jobs on them as pages follow them."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import gradio as gr

from ckv_core.errors import CkvError
from ckv_core.experiment.kept_table import kept_table
from ckv_core.experiment.table import Cell, text_column
from ckv_core.records.kept_folder import KeptEntry
from ui.accounts.turns import in_turn
from ui.services.caches import CacheJob, Caches


def job_sentence(job: CacheJob) -> str:
    """Where a job is, or how it ended; empty once it is done."""
    known = {"queued": "Waits for its turn.", "failed": job.reason, "cancelled": "Cancelled."}
    if job.state in known or job.progress is None:
        return known.get(job.state, "")
    share = "" if job.progress.fraction is None else f" {job.progress.fraction:.0%}"
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
