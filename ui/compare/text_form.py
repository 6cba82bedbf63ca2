"""The part of the Compare form for one text: examples, text, question and expected answer."""

from collections.abc import Mapping
from typing import Any

import gradio as gr

from ckv_core.records.run_request import RunRequest
from ui.compare.controls import text
from ui.components.base import ContextBar


def build_text(
    parts: dict[str, Any], examples: Mapping[str, RunRequest]
) -> tuple[list[tuple[RunRequest, gr.Button]], gr.HTML]:
    """Lay out `context`, `question` and `answer`; returns the examples and the text's bar."""
    info = "Paste a long document, or open a text file. Its cache entries are evicted."
    parts["context"] = text("context", "Text", info, (10, 10))
    with gr.Row(elem_id="text-foot"):
        bar = ContextBar(elem_id="context-bar")
        with gr.Row(elem_classes=["example-row"]):
            gr.HTML("<span>Try an example</span>", elem_classes=["bare", "example-lead"])
            style: dict[str, Any] = {"size": "sm", "min_width": 80, "scale": 0}
            style["elem_classes"] = ["example-button"]
            buttons = [(request, gr.Button(title, **style)) for title, request in examples.items()]
    with gr.Row(elem_id="question-row"):
        info, size = "About the text; may be empty.", {"scale": 2, "min_width": 260}
        parts["question"] = text("question", "Question", info, (1, 4), **size)
        size = {"scale": 1, "min_width": 200}
        info = "Optional. Each output is checked for it."
        parts["answer"] = text("answer", "Expected answer", info, (1, 4), **size)
    return buttons, bar
