"""The compare form: every control with its one line of explanation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.request.compare_request import DTYPES, MAX_FOLLOW_UPS, MAX_NEW_TOKENS, MAX_VARIANTS
from ui.compare.examples import Example
from ui.compare.forms import (
    ADVANCED_PARAMETERS,
    CONTROL_NAMES,
    DEFAULT_ANALYSIS,
    ablation_bases,
)
from ui.compare.model_list import models_value
from ui.compare.offers import DEFAULT_VARIANTS, picker_offer
from ui.compare.parameter_controls import parameter_control
from ui.compare.prompt_controls import (
    Controls,
    build_prompt,
    device_control,
    model_control,
    number,
    text,
)
from ui.shell.parts import ModelLine, ModelList, Notice, OwnBar, VariantPicker

ANALYSIS_CHOICES = [
    ("Bounds and oracles", "bounds"),
    ("Teacher-forced fidelity", "forced"),
    ("Greedy oracle (slow)", "greedy"),
]
ANALYSIS_INFO = (
    "Bounds and oracles: every distance, stage 1's attention mass, the theorems' bounds and the "
    "best that true attention could choose; costs about one more decoding step per variant. "
    "Fidelity: every variant reads the full cache's own text; about one more generation. "
    "Greedy oracle: entries dropped one by one by the true head L1; slow, seconds to minutes "
    "per variant."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Controls):
    """The built controls, in the order of `CONTROL_NAMES`, and what belongs to this form alone."""

    model_line: ModelLine
    model_list: ModelList
    variants_line: Notice
    ablation_base: Any
    ablation_button: gr.Button


def build_form(
    *, models: Sequence[str], model: str, device: str, examples: Sequence[Example]
) -> Form:
    """Lay out the controls, two of them preselected; call inside a Blocks context."""
    controls: dict[str, Any] = {}
    with gr.Row(equal_height=False):
        buttons, context_bar = build_prompt(
            controls, examples, answer_info="Optional: looked for in every generated text."
        )
        with gr.Column(scale=4, min_width=320):
            model_line, model_list = _build_run_controls(controls, models, model)
    variants_line = Notice(elem_id="variants-line")
    base, button = _build_more(controls, device)
    return Form(
        controls={name: controls[name] for name in CONTROL_NAMES},
        examples=buttons,
        context_bar=context_bar,
        model_line=model_line,
        model_list=model_list,
        variants_line=variants_line,
        ablation_base=base,
        ablation_button=button,
    )


def _build_run_controls(
    controls: dict[str, Any], models: Sequence[str], model: str
) -> tuple[ModelLine, ModelList]:
    controls["model"] = model_control(models, model)
    model_line = ModelLine(elem_id="model-line")
    model_list = ModelList(models_value(models), elem_id="model-list")
    controls["variants"] = VariantPicker(
        list(DEFAULT_VARIANTS),
        offer=picker_offer(
            "Variants", "All share one prompt, one prefill and one total budget.", DEFAULT_VARIANTS
        ),
        elem_id="variants",
    )
    with gr.Row():
        told = "Entries kept per KV head: 128, 10% or 4MiB."
        controls["budget"] = text("budget", "Budget", told, value="128", min_width=120)
        told = "CriticalKV: share chosen by attention alone, 0 to 1."
        controls["alpha"] = number("alpha", "Alpha", told, 0.25, step=0.05)
        told = f"Generated per variant, 1 to {MAX_NEW_TOKENS}."
        controls["max_new_tokens"] = number("max-new-tokens", "New tokens", told, 64)
    return model_line, model_list


def _build_more(controls: dict[str, Any], device: str) -> tuple[Component, gr.Button]:
    """Advanced parameters, diagnostics and further variants; the ablation's base and button."""
    with gr.Accordion("Advanced parameters", open=False, elem_id="advanced"):
        gr.Markdown("An empty field means the default shown in grey. Set here for all variants.")
        with gr.Row(elem_classes=["knob-grid"]):
            for parameter in ADVANCED_PARAMETERS:
                controls[parameter.name] = parameter_control(parameter)
            controls["dtype"] = gr.Dropdown(
                list(DTYPES),
                value="auto",
                label="dtype",
                info="auto: float32 on CPU, the checkpoint's own on CUDA.",
                elem_id="dtype",
                min_width=220,
            )
            controls["device"] = device_control(device)
        controls["ignore_eos"] = gr.Checkbox(
            label="Ignore EOS",
            info="Go on after the end-of-sequence token: equally many tokens for all variants.",
            elem_id="ignore-eos",
        )
    with gr.Accordion("Diagnostics", open=False, elem_id="lab-settings"):
        controls["analysis"] = gr.CheckboxGroup(
            ANALYSIS_CHOICES,
            value=list(DEFAULT_ANALYSIS),
            label="Measure",
            info=ANALYSIS_INFO,
            elem_id="analysis",
        )
        controls["follow_ups"] = text(
            "follow-up-questions",
            "Follow-up questions",
            f"One per line, up to {MAX_FOLLOW_UPS}; asked of the same evicted caches. Needs "
            "the scenario Context only, where the cache does not depend on the question.",
            (2, 8),
        )
    with gr.Accordion("More variants", open=False, elem_id="more"):
        controls["more_variants"] = text(
            "more-variants",
            "One variant per line",
            "A SPEC: METHOD[+critical|+critical_auto][:key=value,...], with its own "
            f"budget, alpha and parameters; up to {MAX_VARIANTS} variants in all.",
            (3, 8),
            placeholder="snapkv:budget=256\nadakv+critical:budget=10%,alpha=0.5\n"
            "snapkv+critical:preset=kvpress",
        )
        with gr.Row(elem_id="ladder"):
            base = gr.Dropdown(
                ablation_bases(),
                value=ablation_bases()[0][1],
                label="Ablation over",
                info="Controls that tell un-pooling, the value norm and alpha apart; the results "
                "then hold a chart of them.",
                elem_id="ladder-base",
                min_width=320,
                scale=0,
            )
            button = gr.Button("Add the ablation", elem_id="add-ladder", scale=0, min_width=220)
        controls["own"] = text(
            "own",
            "External selections",
            "Kept positions from other code as JSON (docs/external_selection.md, or a "
            "run's result JSON): each becomes one more variant. Paste them, or open files.",
            (2, 4),
        )
        OwnBar(elem_id="own-bar")
    return base, button
