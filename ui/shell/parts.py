"""Settings of events, and sentences, that several pages use."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import gradio as gr

from ckv_core.errors import CkvError

Tone = Literal["", "good", "warn", "error"]
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# A handler that only waits must never make another wait.
SHARED: dict[str, Any] = {**PRIVATE, "concurrency_limit": None}
AT_ONCE: dict[str, Any] = {**PRIVATE, "queue": False}


def notice_value(
    text: str, tone: Tone = "", links: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Value of a Notice or a ContextBar.

    `links`: of a Notice, (words, address) of the pages of ours where the reader can go on.
    """
    return {"text": text, "tone": tone} | ({"links": links} if links else {})


SILENT = notice_value("")


def refused(error: CkvError, controls: Mapping[str, Any]) -> dict[str, Any]:
    """Value of a Notice: what refused, and the control that is wrong where it is one of these.

    `within` is the folded section that holds it, which the page opens.
    """
    control = controls.get(error.field)
    value = notice_value(str(error), "error")
    if control is None:
        return value
    outer = control.parent
    while outer is not None and not isinstance(outer, gr.Accordion):
        outer = outer.parent
    return value | {"field": control.elem_id, "within": outer.elem_id if outer else ""}


def tried(act: Callable[..., object], *given: Any) -> dict[str, Any]:
    """Value of a Notice: what refused, in red, or nothing."""
    try:
        act(*given)
    except CkvError as error:
        return notice_value(str(error), "error")
    return SILENT


TO_RUNS = ("List of runs", "/runs")
TO_COMPARE = ("Compare page", "/")


def event_field(event: gr.EventData, name: str) -> Any:
    """One field of a client's event, which may be anything; None for none."""
    data = getattr(event, "_data", None)
    return data.get(name) if isinstance(data, dict) else None
