"""The Methods page: generated from the registered methods and parameters."""

from typing import Any

import gradio as gr

from ui.components.base import Facts
from ui.components.modules import on_load
from ui.methods.capacity import Capacity
from ui.methods.cards import methods_list, parameters_table
from ui.settings import Settings

FORMULA_TEXT = (
    "Open a method for its formula, what it kept of a text, its parameters and what it needs. In "
    "the formulas a head keeps the entries *i* of largest *s*, as many as its budget *b*. "
    "*a* is the attention of query *q* of head *h* to entry *i* of *n*, *W* the observation "
    "window. *k* and *v* are key and value of *d* channels. *group* is the mean or the "
    "maximum over the query heads of a KV head, and *pool* smooths along the prompt. "
)
INTRO = (
    "## Methods\n"
    "[What a server can do](methods#servers) · [How many requests fit](methods#capacity) · "
    "[Parameters](methods#parameters) · [Limits](methods#limits)\n\n"
    "A method scores the entries (scorer), shares the budget among heads and layers (budget rule) "
    "and chooses what to keep (selector). CriticalKV is a selector with two "
    "stages. Stage 1 chooses part of each head's budget by attention alone. Stage 2 chooses the "
    "rest by attention times the size of the value that would be lost. Each method says below "
    "whether `+critical` can follow it, and `+critical_auto`, which needs an observation window. "
    "Compare query-aware and query-agnostic methods in the scenario context-only: then none sees "
    "the question."
)
SPEC_TEXT = (
    "## Writing a method with its settings\n"
    "`METHOD[+critical|+critical_auto][:key=value,...]`, for example `snapkv:budget=128` or "
    "`adakv+critical:budget=10%,alpha=0.5`. `+critical` gives every head the same alpha; "
    "`+critical_auto` finds one per KV head from the observation window. The same words work on "
    "the command line."
)
LIMITS_TEXT = "## Limits\nWhat this app takes at most."


def build_methods(settings: Settings, page: gr.Blocks) -> None:
    with gr.Column(elem_id="methods"):
        gr.Markdown(INTRO, elem_classes=["section"])
        bare: dict[str, Any] = {"elem_classes": ["bare"], "apply_default_css": False}
        gr.Markdown(FORMULA_TEXT, elem_classes=["section"])
        gr.HTML(methods_list(), js_on_load=on_load("assets/scripts/pages/methods.js"), **bare)
        Capacity().wire(page)
        gr.HTML(parameters_table(), **bare)
        gr.Markdown(SPEC_TEXT, elem_classes=["section"])
    gr.Markdown(LIMITS_TEXT, elem_classes=["section"])
    limits = settings.limits.rows(with_logins=bool(settings.users))
    Facts({"rows": [{"label": name, "text": text} for name, text in limits]}, elem_id="limits")
