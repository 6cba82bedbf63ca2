"""Controls of the advanced knobs, and what a preset shows in them."""

from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.methods import KNOBS, METHODS, POLICIES
from ckv_core.methods.base import own_defaults
from ckv_core.methods.parameters import Knob
from ui.compare.forms import ADVANCED_KNOBS
from ui.compare.offers import shown_default


def preset_updates(preset: str, alpha: float) -> list[Any]:
    """Alpha and the advanced knobs' shown defaults under a preset.

    An alpha that the reader moved stays.
    """
    known = {shown_default(KNOBS["alpha"], name) for name in ("paper", "kvpress")}
    new_alpha = shown_default(KNOBS["alpha"], preset) if alpha in known else gr.skip()
    knobs = [
        gr.update(choices=_knob_choices(k, preset))
        if k.choices
        else gr.update(placeholder=placeholder(k, preset))
        for k in ADVANCED_KNOBS
        if k.name != "preset"
    ]
    return [new_alpha, *knobs]


def knob_control(knob: Knob) -> Component:
    """A list for words, a text field for numbers; empty means the default."""
    elem_id = f"knob-{knob.name}"
    if knob.choices:
        return gr.Dropdown(
            _knob_choices(knob, "paper"),
            value="",
            label=knob.name,
            info=knob.help,
            elem_id=elem_id,
            min_width=220,
        )
    return gr.Textbox(
        label=knob.name,
        info=knob.help,
        placeholder=placeholder(knob, "paper"),
        elem_id=elem_id,
        min_width=220,
        max_lines=1,
    )


def placeholder(knob: Knob, preset: str) -> str:
    """The default, and those of methods that have their own; of a part only on request, off."""
    if knob.name in POLICIES:
        return "off"
    own = [
        f"{METHODS.get(method).label}: {default}"
        for method, default in own_defaults(knob.name).items()
    ]
    return ", ".join([str(shown_default(knob, preset)), *own])


def _knob_choices(knob: Knob, preset: str) -> list[tuple[str, str]]:
    default = shown_default(knob, preset)
    return [(f"default ({default})", ""), *((word, word) for word in knob.choices)]
