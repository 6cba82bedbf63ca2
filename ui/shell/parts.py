"""Parts that several pages use: settings of events, sentences, fields, and kept drafts."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import gradio as gr

from ckv_core.errors import CkvError
from ui.components.modules import imported

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


def text(
    elem_id: str, label: str, info: str, lines: tuple[int, int] = (1, 1), **more: Any
) -> gr.Textbox:
    """A field of text, of so many lines at first and at most."""
    first, most = lines
    return gr.Textbox(label=label, info=info, elem_id=elem_id, lines=first, max_lines=most, **more)


def number(elem_id: str, label: str, info: str, value: float, **more: Any) -> gr.Number:
    """A field of a number. No slider: that turns one out of range into another without a word."""
    return gr.Number(value, label=label, info=info, elem_id=elem_id, **{"min_width": 120} | more)


def dropdown(
    elem_id: str, label: str, info: str, choices: Sequence[Any], value: Any, **more: Any
) -> gr.Dropdown:
    """A list of words, or of (label, word)."""
    return gr.Dropdown(list(choices), value=value, label=label, info=info, elem_id=elem_id, **more)


def segments(elem_id: str, label: str, choices: Sequence[Any], value: str, **more: Any) -> gr.Radio:
    """A choice of two or three that stand beside one another."""
    more["elem_classes"] = ["ckv-seg-radio"]
    return gr.Radio(list(choices), value=value, label=label, elem_id=elem_id, **more)


def late_dropdown(elem_id: str, label: str, info: str, *, scale: int) -> gr.Dropdown:
    """A list whose words come later; a word may be any, as they are not the server's to keep."""
    more: dict[str, Any] = {"scale": scale, "min_width": 220, "allow_custom_value": True}
    return gr.Dropdown([], label=label, info=info, elem_id=elem_id, **more)


_SCRIPT = imported("assets/scripts/pages/drafts.js")


class Draft:
    """Keeps one form's values with assets/scripts/pages/drafts.js; no server sees them."""

    def __init__(self, path: str, controls: Sequence[Any], new: gr.Button | None = None) -> None:
        """Keep what is typed into these controls of the page at a path; call inside Blocks."""
        # Another version's form may have other controls.
        names = " ".join(str(each.elem_id) for each in controls)
        self._controls = list(controls)
        self._name = f"{path}-{zlib.crc32(names.encode()):08x}"
        self._keep = _calling("...values", f"keep({self._name!r}, values)")
        # The script presses it at whatever is done in the form.
        keep = gr.Button(visible="hidden", elem_id="draft-keep")
        keep.click(None, self._controls, None, js=self._keep, trigger_mode="multiple", **AT_ONCE)
        if new is not None:
            blank = _calling("", f"startAnew({self._name!r}, {path!r})")
            new.click(None, None, None, js=blank, **AT_ONCE)

    def keep_after(self, event: Any) -> None:
        """Keep the values too that a handler filled in."""
        event.then(None, self._controls, None, js=self._keep, **AT_ONCE)

    def restore_after(self, opened: Any) -> Any:
        """Put the kept values back once the page's own handler has filled its controls.

        Returns the event after which the controls hold what the form shows.
        """
        js = _calling("", f"restore({self._name!r}, {len(self._controls)})")
        opened.failure(None, None, None, js=_SETTLED, **AT_ONCE)
        restored = opened.then(None, None, self._controls, js=js, **AT_ONCE)
        return restored.then(None, None, None, js=_SETTLED, **AT_ONCE)


def _calling(given: str, call: str) -> str:
    return f"({given}) => {_SCRIPT}.then((module) => module.{call})"


# As a handler's `js`: it fills the form, and Run waits until `settle_after`.
FILLS, _SETTLED = _calling("", "fills()"), _calling("", "settled()")


def settle_after(filled: Any) -> None:
    """Let Run go on once controls hold what a handler with `FILLS` filled in, or it failed."""
    for end in (filled.then, filled.failure):  # Gradio calls one of them
        end(None, None, None, js=_SETTLED, **AT_ONCE)
