"""The Methods page: generated from the registered methods and parameters."""

from collections.abc import Iterable, Sequence

import gradio as gr

from ckv_core.methods import METHODS, PARAMETERS, SELECTOR_PARAMETERS
from ckv_core.methods.parameters import Parameter
from ui.compare.form import placeholder
from ui.looks.theme import ASSETS
from ui.methods.cards import marked, methods_list

FORMULA_TEXT = (
    "In the formulas a head keeps the entries *i* of largest *s*, as many as its budget *b*; "
    "*a* is the attention of query *q* of head *h* to entry *i* of *n*, *W* the observation "
    "window, *k* and *v* are key and value of *d* channels, *group* is the mean or the "
    "maximum over the query heads of a KV head, and *pool* smooths along the prompt. "
)
INTRO = (
    "## Methods\n"
    "A method is a scorer, a budget rule and a selector. CriticalKV is a selector: it gives "
    "part of each head's budget to attention alone (stage 1) and the rest to attention times "
    "the size of the value that would be lost (stage 2). It combines with every method that "
    "scores by attention. "
    + FORMULA_TEXT
    + "Methods that are query-aware and such that are not are compared fairly "
    "where the context alone is compressed: then neither sees the question."
)
PARAMETERS_TEXT = (
    "## Parameters\n"
    "Every setting that changes which entries are kept. `preset=paper` is what the papers print, "
    "`preset=kvpress` what kvpress ships; any parameter given beside it wins."
)
SPEC_TEXT = (
    "## Writing a variant\n"
    "`METHOD[+critical|+critical_auto][:key=value,...]`, for example `snapkv:budget=128` or "
    "`adakv+critical:budget=10%,alpha=0.5`. `+critical` gives every head the same alpha; "
    "`+critical_auto` finds one per KV head from the observation window. The same words work on "
    "the command line."
)


def build_methods() -> None:
    """Lay out the page; call inside its route."""
    with gr.Column(elem_id="methods"):
        gr.Markdown(INTRO, elem_classes=["section"])
        gr.HTML(
            methods_list(),
            elem_classes=["bare"],
            apply_default_css=False,
            js_on_load=(ASSETS / "method_links.js").read_text("utf-8"),
        )
        gr.Markdown(SPEC_TEXT, elem_classes=["section"])
        gr.Markdown(PARAMETERS_TEXT, elem_classes=["section"])
        gr.HTML(parameters_table(), elem_classes=["bare"], apply_default_css=False)


def parameters_table() -> str:
    """HTML table, one row per parameter."""
    heads = ("Parameter", "paper", "kvpress", "Used by", "Meaning")
    rows = (
        (
            f"`{parameter.name}`",
            _default(parameter, "paper"),
            _default(parameter, "kvpress"),
            _users(parameter.name),
            parameter.help
            + (f" One of {', '.join(parameter.choices)}." if parameter.choices else ""),
        )
        for parameter in PARAMETERS.values()
    )
    return _table("Parameters", heads, rows)


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that a phone shows as cards, where each cell has its head's name before it."""
    lines = (
        "".join(
            f'<td data-label="{head}">{marked(cell)}</td>'
            for head, cell in zip(heads, row, strict=True)
        )
        for row in rows
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<table class="ckv-table ckv-cells"><caption class="ckv-offscreen">{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _default(parameter: Parameter, preset: str) -> str:
    """What the parameter is under a preset, and for methods that have their own default."""
    return preset if parameter.name == "preset" else placeholder(parameter, preset)


def _users(parameter: str) -> str:
    evicting = [method for method in METHODS if method.evicts]
    readers = [method for method in evicting if parameter in method.parameters() | method.options()]
    names = [method.label for method in readers]
    plain = names if len(names) < len(evicting) else ["every method that evicts"]
    return ", ".join([*plain, *(["CriticalKV"] if parameter in SELECTOR_PARAMETERS else [])])
