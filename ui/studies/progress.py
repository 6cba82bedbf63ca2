"""Studies as the list and a study's own page show how far they are. No Gradio."""

from collections.abc import Sequence
from typing import Any

from ckv_core.studies.runner import Cost
from ui.services.studies import StudyView
from ui.tables.data_table import Cells, column, count, data_table, table_row, text_column


def state_word(view: StudyView) -> str:
    """`running`, `stopping`, `waiting`, `done`, `stopped` or `unreadable`."""
    return {"queued": "waiting", "unfinished": "stopped"}.get(view.state, view.state)


def progress_sentence(view: StudyView) -> str:
    """How far it is, what it does now, and why it stopped."""
    stored = view.stored
    told = [
        f"{stored.done:,} of {stored.total:,} results ({stored.samples:,} samples x "
        f"{stored.points} points)"
    ]
    if stored.failed:
        for_good = f", {stored.failed_for_good:,} of them each time"
        told.append(f"{stored.failed:,} failed{for_good if stored.failed_for_good else ''}")
    now = view.progress
    if now is not None and now.sample:
        told.append(f"last sample {now.sample}")
    if now is not None and now.seconds_left is not None:
        told.append(f"about {duration(now.seconds_left)} left")
    ends = " What a cluster works at ends first." if view.state == "stopping" else ""
    return f"{state_word(view).capitalize()}: {', '.join(told)}. {stored.reason}{ends}".rstrip()


def cost_sentence(cost: Cost) -> str:
    """What a study takes, before it starts."""
    return (
        f"{cost.samples:,} samples x {cost.points // max(1, cost.samples)} points, about "
        f"{cost.tokens:,} prompt tokens (the longest prompt {cost.longest:,}): about "
        f"{duration(cost.seconds)}, estimated from the default model's times on two CPU cores."
    )


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def studies_table(views: Sequence[StudyView]) -> dict[str, Any]:
    columns = [
        text_column("name", "Name"),
        text_column("state", "State"),
        column("results", "Results", "of all"),
        column("failed", "Failed"),
        column("samples", "Samples"),
        column("points", "Points", "a sample"),
        text_column("model", "Model"),
        text_column("created", "Created", "UTC"),
    ]
    rows = [table_row(_cells(view)) for view in views]
    empty = "No studies yet. Create one below."
    return data_table("All studies", columns, rows, file="studies.csv", empty=empty)


def _cells(view: StudyView) -> Cells:
    stored = view.stored
    return {
        "name": {"text": stored.study.name, "href": f"/study?id={stored.slug}"},
        "state": {"text": stored.problem or state_word(view)},
        "results": {"text": f"{stored.done:,} of {stored.total:,}", "value": stored.done},
        "failed": count(stored.failed),
        "samples": count(stored.samples),
        "points": count(stored.points),
        "model": {"text": stored.study.model},
        "created": {"text": f"{stored.created_at:%Y-%m-%d %H:%M}"},
    }
