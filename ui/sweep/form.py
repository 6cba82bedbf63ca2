"""The sweep form: the prompt, the grid of methods, budgets and alphas, and the line of cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ckv_core.request.compare_request import MAX_NEW_TOKENS, MAX_SWEEP_POINTS
from ui.compare.examples import Example
from ui.compare.offers import picker_offer
from ui.compare.prompt_controls import (
    Controls,
    build_prompt,
    device_control,
    model_control,
    number,
    text,
)
from ui.shell.parts import Notice, VariantPicker
from ui.sweep.forms import SWEEP_CONTROLS, SweepForm

DEFAULTS = SweepForm()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepControls(Controls):
    """The built controls, in the order of `SWEEP_CONTROLS`, and the line of cost."""

    cost_line: Notice


def build_sweep_form(
    *, models: Sequence[str], model: str, device: str, examples: Sequence[Example]
) -> SweepControls:
    """Lay out the controls; call inside a Blocks context."""
    controls: dict[str, Any] = {}
    with gr.Row(equal_height=False):
        buttons, context_bar = build_prompt(
            controls, examples, answer_info="Optional: looked for where text is generated."
        )
        with gr.Column(scale=4, min_width=320):
            with gr.Row():
                controls["model"] = model_control(models, model)
                controls["device"] = device_control(device)
            _build_grid(controls)
    cost_line = Notice(elem_id="cost-line")
    return SweepControls(
        controls={name: controls[name] for name in SWEEP_CONTROLS},
        examples=buttons,
        context_bar=context_bar,
        cost_line=cost_line,
    )


def _build_grid(controls: dict[str, Any]) -> None:
    controls["methods"] = VariantPicker(
        list(DEFAULTS.methods),
        offer=picker_offer(
            "Methods",
            "Each at every budget, with CriticalKV also at every alpha.",
            DEFAULTS.methods,
            with_full=False,
        ),
        elem_id="methods",
    )
    controls["more_methods"] = text(
        "more-methods",
        "More methods, one SPEC per line",
        "Without budget and alpha: these come from the lists below.",
        (1, 4),
        placeholder="snapkv:pool=none",
    )
    with gr.Row():
        told = "Entries per KV head or percent: 64, 128, 10%."
        controls["budgets"] = text(
            "budgets", "Budgets", told, value=DEFAULTS.budgets, min_width=180
        )
        told = "CriticalKV only, 0 to 1: 0, 0.25, 0.5."
        controls["alphas"] = text("alphas", "Alphas", told, value=DEFAULTS.alphas, min_width=180)
    controls["bounds"] = gr.Checkbox(
        value=False,
        label="Bounds and oracles",
        info="Adds the share of heads with sigma over 0.5 and, as dashed lines of the head L1, the "
        "best that true attention could choose; each point takes longer.",
        elem_id="bounds",
    )
    with gr.Row():
        controls["generate"] = gr.Checkbox(
            value=DEFAULTS.generate,
            label="Generate text",
            info=f"Adds agreement and answers; up to {MAX_SWEEP_POINTS} points decode.",
            elem_id="generate",
            min_width=180,
        )
        told, tokens = f"Where text is generated, 1 to {MAX_NEW_TOKENS}.", DEFAULTS.max_new_tokens
        controls["max_new_tokens"] = number("max-new-tokens", "New tokens", told, tokens)
