"""Controls of the advanced parameters, and what a preset shows in them."""

from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.methods import METHODS, PARAMETERS, POLICIES
from ckv_core.methods.base import own_defaults
from ckv_core.methods.parameters import Parameter
from ui.compare.forms import ADVANCED_PARAMETERS
from ui.compare.offers import shown_default
from ui.compare.prompt_controls import text


def preset_updates(preset: str, alpha: float) -> list[Any]:
    """Alpha and the advanced parameters' shown defaults under a preset.

    An alpha that the reader moved stays.
    """
    known = {shown_default(PARAMETERS["alpha"], name) for name in ("paper", "kvpress")}
    new_alpha = shown_default(PARAMETERS["alpha"], preset) if alpha in known else gr.skip()
    parameters = [
        gr.update(choices=_parameter_choices(k, preset))
        if k.choices
        else gr.update(placeholder=placeholder(k, preset))
        for k in ADVANCED_PARAMETERS
        if k.name != "preset"
    ]
    return [new_alpha, *parameters]


def parameter_control(parameter: Parameter) -> Component:
    """A list for words, a text field for numbers; empty means the default."""
    elem_id = f"parameter-{parameter.name}"
    if parameter.choices:
        return gr.Dropdown(
            _parameter_choices(parameter, "paper"),
            value="",
            label=parameter.name,
            info=parameter.help,
            elem_id=elem_id,
            min_width=220,
        )
    shown = placeholder(parameter, "paper")
    return text(elem_id, parameter.name, parameter.help, placeholder=shown, min_width=220)


def placeholder(parameter: Parameter, preset: str) -> str:
    """The default, and those of methods that have their own; of a part only on request, off."""
    if parameter.name in POLICIES:
        return "off"
    own = [
        f"{METHODS.get(method).label}: {default}"
        for method, default in own_defaults(parameter.name).items()
    ]
    return ", ".join([str(shown_default(parameter, preset)), *own])


def _parameter_choices(parameter: Parameter, preset: str) -> list[tuple[str, str]]:
    default = shown_default(parameter, preset)
    return [(f"default ({default})", ""), *((word, word) for word in parameter.choices)]
