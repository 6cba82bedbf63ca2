"""Controls that several forms have: fields of text and numbers, and lists of words."""

from collections.abc import Sequence
from typing import Any

import gradio as gr


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
    elem_id: str, label: str, info: str, choices: Sequence[Any], value: str, **more: Any
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
