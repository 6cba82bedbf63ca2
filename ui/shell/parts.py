"""Settings of events, and sentences, that several pages use."""

from collections.abc import Sequence
from typing import Any, Literal

import gradio as gr

Tone = Literal["", "good", "warn", "error"]
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# A handler that only waits must never make another wait.
SHARED: dict[str, Any] = {**PRIVATE, "concurrency_limit": None}
AT_ONCE: dict[str, Any] = {**PRIVATE, "queue": False}


def said(text: str, tone: Tone = "", links: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """Value of a Notice or a ContextBar.

    Args:
        text: one sentence.
        tone: how it is coloured.
        links: of a Notice, (words, address) of the pages of ours where the reader can go on.
    """
    return {"text": text, "tone": tone, "links": links} if links else {"text": text, "tone": tone}


SILENT = said("")
TO_RUNS = ("List of runs", "/runs")
TO_COMPARE = ("Compare page", "/")


def event_field(event: gr.EventData, name: str) -> Any:
    """One field of a client's event, which may be anything; None for none."""
    data = getattr(event, "_data", None)
    return data.get(name) if isinstance(data, dict) else None
