"""The Methods page: generated from the registered methods and knobs."""

import re

import gradio as gr

from ckv_core.knobs import KNOBS, Knob
from ckv_core.methods import METHODS
from ui.pages.knob_controls import placeholder

ARXIV = re.compile(r"arXiv:([\d.]+)")

INTRO = (
    "## Methods\n"
    "A method is a scorer, a budget rule and a selector. CriticalKV is a selector: it gives "
    "part of each head's budget to attention alone (stage 1) and the rest to attention times "
    "the size of the value that would be lost (stage 2). It combines with every method that "
    "scores by attention."
)
KNOBS_TEXT = (
    "## Knobs\n"
    "Every setting that changes which entries are kept. `preset=paper` is what the papers print, "
    "`preset=kvpress` what kvpress ships; any knob given beside it wins."
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
        gr.Markdown(methods_table(), elem_classes=["wide"])
        gr.Markdown(SPEC_TEXT, elem_classes=["section"])
        gr.Markdown(KNOBS_TEXT, elem_classes=["section"])
        gr.Markdown(knobs_table(), elem_classes=["wide"])


def methods_table() -> str:
    """Markdown table, one row per method."""
    lines = ["| Method | In a SPEC | What it keeps | With CriticalKV | Source |", "|" + "---|" * 5]
    for method in METHODS:
        critical = f"`{method.name}+critical`" if method.supports_critical else "no"
        source = ARXIV.sub(r"[\g<0>](https://arxiv.org/abs/\1)", method.source)
        cells = (method.label, f"`{method.name}`", method.summary, critical, source)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def knobs_table() -> str:
    """Markdown table, one row per knob."""
    lines = ["| Knob | paper | kvpress | Used by | Meaning |", "|" + "---|" * 5]
    for knob in KNOBS.values():
        words = f" One of {', '.join(knob.choices)}." if knob.choices else ""
        lines.append(
            f"| `{knob.name}` | {_default(knob, 'paper')} | {_default(knob, 'kvpress')} | "
            f"{_users(knob.name)} | {knob.help}{words} |"
        )
    return "\n".join(lines)


def _default(knob: Knob, preset: str) -> str:
    """What the knob is under a preset, and for methods that have their own default."""
    return preset if knob.name == "preset" else placeholder(knob, preset)


def _users(knob: str) -> str:
    plain = [method.label for method in METHODS if knob in method.knobs]
    selecting = any(
        knob in m.knobs_with("critical") for m in METHODS if m.supports_critical
    ) and all(knob not in m.knobs for m in METHODS)
    return ", ".join([*plain, *(["CriticalKV"] if selecting else [])])
