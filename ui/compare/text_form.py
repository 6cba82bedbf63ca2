"""The part of the Compare form for one text: the text with its foot, question, expected answer."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

from ui.compare.controls import text
from ui.components.base import ContextBar

EXAMPLE = "For example: "


def build_text(parts: dict[str, Any], examples: Sequence[str]) -> gr.HTML:
    """Lay out `context`, `question` and `answer`; returns the text's foot with these examples."""
    info = "what the model reads and the methods evict from"
    hint = "Paste a long text here, or drop a file (.txt, .md, .json, .pdf, .docx, code)."
    with gr.Column(elem_id="text-box"):
        parts["context"] = text("context", "Text", info, (12, 12), placeholder=hint)
        bar = ContextBar(examples=list(examples), elem_id="context-bar")
    with gr.Row(elem_id="question-row"):
        hint, size = f"{EXAMPLE}What is the access code for pump house 4?", {"min_width": 260}
        parts["question"] = text(
            "question", "Question", "may be empty", (1, 4), placeholder=hint, scale=2, **size
        )
        parts["answer"] = text(
            "answer",
            "Expected answer",
            "optional",
            (1, 4),
            placeholder=f"{EXAMPLE}5829",
            scale=1,
            min_width=200,
        )
    return bar
