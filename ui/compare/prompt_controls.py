"""Controls that several forms have: examples, prompt, scenario, model and device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ckv_core.request.compare_request import DEVICES
from ui.compare.examples import Example
from ui.components.text_files import ContextBar

SCENARIO_CHOICES = [
    ("Before compression (regular)", "regular"),
    ("After compression, for a reusable cache (context-only)", "context-only"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """A built form: controls by name in the order of its values, and the examples' buttons."""

    controls: dict[str, Any]  # of many kinds
    examples: list[tuple[Example, gr.Button]]
    context_bar: gr.HTML

    def inputs(self) -> list[Any]:
        return list(self.controls.values())

    def pick(self, *names: str) -> list[Any]:
        return [self.controls[name] for name in names]


EXAMPLE_TEXTS = ("context", "question", "answer", "scenario", "protect")


def show_example(example: Example) -> list[str]:
    """Values of `EXAMPLE_TEXTS`."""
    return [example.context, example.question, example.answer, example.scenario, ""]


def build_prompt(
    controls: dict[str, Any], examples: Sequence[Example]
) -> tuple[list[tuple[Example, gr.Button]], gr.HTML]:
    """Add `context`, `question`, `answer`, `scenario` and `protect` in a column, inside a Row.

    Returns:
        Each example with its button, and the bar below the context.
    """
    with gr.Column(scale=5, min_width=320):
        with gr.Row(elem_classes=["example-row"]):
            gr.HTML("<span>Try an example</span>", elem_classes=["bare", "example-lead"])
            style: dict[str, Any] = {"size": "sm", "min_width": 80, "scale": 0}
            style["elem_classes"] = ["example-button"]
            buttons = [(example, gr.Button(example.title, **style)) for example in examples]
        info = "Paste a long document, or open a text file. Its cache entries are evicted."
        controls["context"] = text("context", "Context", info, (10, 10))
        bar = ContextBar(elem_id="context-bar")
        with gr.Row():
            info, size = "Asked about the context; may be empty.", {"scale": 3, "min_width": 260}
            controls["question"] = text("question", "Question", info, (1, 4), **size)
            size = {"scale": 2, "min_width": 200}
            info = "Optional. Each output is checked for it."
            controls["answer"] = text("answer", "Expected answer", info, (1, 4), **size)
        controls["scenario"] = scenario_control("regular")
        controls["protect"] = text(
            "protect",
            "Protected text",
            "Passages that no method may evict, one per line: words copied from the prompt, "
            "or positions (tokens:12-39). They count inside the budget.",
            (1, 6),
        )
    return buttons, bar


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


def late_dropdown(elem_id: str, label: str, info: str, *, scale: int) -> gr.Dropdown:
    """A list whose words come later; a word may be any, as they are not the server's to keep."""
    more: dict[str, Any] = {"scale": scale, "min_width": 220, "allow_custom_value": True}
    return gr.Dropdown([], label=label, info=info, elem_id=elem_id, **more)


def scenario_control(scenario: str) -> gr.Radio:
    info = "When is the question known?"
    named: dict[str, Any] = {"label": "Scenario", "elem_id": "scenario"}
    return gr.Radio(SCENARIO_CHOICES, value=scenario, info=info, **named)


def model_control(models: Sequence[str], model: str) -> gr.Dropdown:
    """Which model reads the prompt; any other than those offered can be typed."""
    info = "Choose one, or type a Hugging Face id or a local folder and press Enter."
    size = {"scale": 3, "min_width": 260}
    return dropdown("model", "Model", info, models, model, allow_custom_value=True, **size)


def device_control(device: str) -> gr.Dropdown:
    info = "auto: CUDA if there is one."
    return dropdown("device", "Device", info, DEVICES, device, min_width=120)
