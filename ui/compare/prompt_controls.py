"""The controls that both forms have: examples, prompt, scenario, model and device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ckv_core.request.compare_request import DEVICES
from ui.compare.examples import Example
from ui.shell.parts import ContextBar

SCENARIO_CHOICES = [
    ("Context and question are compressed", "regular"),
    ("Context only; the question is read afterwards", "context-only"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """A built form: controls by name in the order of its values, and the examples' buttons."""

    controls: dict[str, Any]
    examples: list[tuple[Example, gr.Button]]
    context_bar: ContextBar

    def inputs(self) -> list[Any]:
        """All controls, for a handler that reads the form."""
        return list(self.controls.values())

    def pick(self, *names: str) -> list[Any]:
        """Some controls."""
        return [self.controls[name] for name in names]


EXAMPLE_TEXTS = ("context", "question", "answer", "scenario", "protect")


def show_example(example: Example) -> list[str]:
    """Values of `EXAMPLE_TEXTS`."""
    return [example.context, example.question, example.answer, example.scenario, ""]


def build_prompt(
    controls: dict[str, Any], examples: Sequence[Example], *, answer_info: str
) -> tuple[list[tuple[Example, gr.Button]], ContextBar]:
    """Add `context`, `question`, `answer`, `scenario` and `protect` in a column, inside a Row.

    Args:
        controls: by name; filled in.
        examples: offered as buttons.
        answer_info: what the reference answer is for.

    Returns:
        Each example with its button, and the bar below the context.
    """
    with gr.Column(scale=5, min_width=320):
        buttons = _build_examples(examples)
        told = "The long text whose cache entries are evicted. Paste it, or open a file."
        controls["context"] = text("context", "Context", told, (10, 10))
        bar = ContextBar(elem_id="context-bar")
        with gr.Row():
            told = "Asked about the context; may be empty."
            controls["question"] = text(
                "question", "Question", told, (1, 4), scale=3, min_width=260
            )
            controls["answer"] = text(
                "answer", "Reference answer", answer_info, (1, 4), scale=2, min_width=200
            )
        controls["scenario"] = gr.Radio(
            SCENARIO_CHOICES,
            value="regular",
            label="Scenario",
            info="What the methods may evict from.",
            elem_id="scenario",
        )
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


def model_control(models: Sequence[str], model: str) -> gr.Dropdown:
    """Which model reads the prompt; any other than those offered can be typed."""
    return gr.Dropdown(
        list(models),
        value=model,
        label="Model",
        info="Choose one, or type a Hugging Face id or a local folder and press Enter.",
        allow_custom_value=True,
        elem_id="model",
        scale=3,
        min_width=260,
    )


def device_control(device: str) -> gr.Dropdown:
    """Where the model runs."""
    return gr.Dropdown(
        list(DEVICES),
        value=device,
        label="Device",
        info="auto: CUDA if there is one.",
        elem_id="device",
        min_width=120,
    )


def _build_examples(examples: Sequence[Example]) -> list[tuple[Example, gr.Button]]:
    with gr.Row(elem_classes=["example-row"]):
        gr.HTML("<span>Try an example</span>", elem_classes=["bare", "example-lead"])
        buttons = [
            gr.Button(each.title, size="sm", min_width=80, scale=0, elem_classes=["example-button"])
            for each in examples
        ]
    return list(zip(examples, buttons, strict=True))
