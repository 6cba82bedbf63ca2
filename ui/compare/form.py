"""The compare form: every control with its one line of explanation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.methods import METHODS, PARAMETERS, POLICIES
from ckv_core.methods.base import own_defaults
from ckv_core.methods.parameters import Parameter
from ckv_core.request.compare_request import DTYPES, MAX_FOLLOW_UPS, MAX_NEW_TOKENS
from ckv_core.request.external_selection import MAX_VARIANTS
from ui.compare.examples import Example
from ui.compare.form_values import ADVANCED_PARAMETERS, CONTROL_NAMES, FormValues
from ui.compare.offers import DEFAULT_VARIANTS, models_value, picker_offer, shown_default
from ui.compare.prompt_controls import (
    Controls,
    build_prompt,
    device_control,
    dropdown,
    model_control,
    number,
    text,
)
from ui.components.model_list import ModelList
from ui.components.notice import ModelLine, Notice
from ui.components.variant_picker import VariantPicker
from ui.settings import Settings

DEFAULTS = FormValues()
ANALYSIS_CHOICES = [
    ("Bounds and oracles", "bounds"),
    ("Teacher-forced fidelity", "forced"),
]
ANALYSIS_INFO = (
    "Bounds and oracles: every distance, stage 1's attention mass, the theorems' bounds and the "
    "best that true attention could choose; costs about one more decoding step per variant. "
    "Fidelity: every variant reads the full cache's own text; about one more generation. "
    "At several budgets or alphas only bounds are measured."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Controls):
    """The built controls, in the order of `CONTROL_NAMES`, and what belongs to this form alone."""

    model_line: gr.HTML
    model_list: gr.HTML
    variants_line: gr.HTML
    ablation_base: Any
    ablation_button: gr.Button


def build_form(settings: Settings, models: Sequence[str], examples: Sequence[Example]) -> Form:
    """Lay out the controls; call inside a Blocks context."""
    controls: dict[str, Any] = {}
    with gr.Row(equal_height=False):
        buttons, context_bar = build_prompt(controls, examples)
        with gr.Column(scale=4, min_width=320):
            controls["model"] = model_control(models, settings.model)
            model_line = ModelLine(elem_id="model-line")
            model_list = ModelList(models_value(models), elem_id="model-list")
            _build_variants(controls)
    variants_line = Notice(elem_id="variants-line")
    base, button = _build_advanced(controls, settings.device)
    _build_diagnostics(controls)
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


def _build_variants(controls: dict[str, Any]) -> None:
    info = "All get the same prompt and the same budget."
    offer = picker_offer("Variants", info, DEFAULT_VARIANTS)
    controls["variants"] = VariantPicker(list(DEFAULT_VARIANTS), offer=offer, elem_id="variants")
    with gr.Row():
        info = "Entries kept per KV head: 128, 10% or 4MiB. Several: 5%, 10%, 20%."
        controls["budget"] = text("budget", "Budget", info, value=DEFAULTS.budget, min_width=120)
        info = "CriticalKV: share chosen by attention alone, 0 to 1. Several: 0, 0.25, 0.5."
        controls["alpha"] = text("alpha", "Alpha", info, value=DEFAULTS.alpha, min_width=120)
        info = (
            f"Generated per variant, 1 to {MAX_NEW_TOKENS}; at several budgets or alphas 0 only "
            "measures."
        )
        tokens = DEFAULTS.max_new_tokens
        controls["max_new_tokens"] = number("max-new-tokens", "New tokens", info, tokens)


def _build_advanced(controls: dict[str, Any], device: str) -> tuple[Component, gr.Button]:
    """Parameters and further variants; returns the ablation's base and button."""
    with gr.Accordion("Advanced", open=False, elem_id="advanced"):
        gr.Markdown("An empty field means the default shown in grey. Set here for all variants.")
        with gr.Row(elem_classes=["parameter-grid"]):
            for parameter in ADVANCED_PARAMETERS:
                controls[parameter.name] = parameter_control(parameter)
            info = "auto: float32 on CPU, bfloat16 on CUDA (float16 on older GPUs)."
            controls["dtype"] = dropdown("dtype", "dtype", info, DTYPES, "auto", min_width=220)
            controls["device"] = device_control(device)
        controls["ignore_eos"] = gr.Checkbox(
            label="Ignore EOS",
            info="Go on after the end-of-sequence token: equally many tokens for all variants.",
            elem_id="ignore-eos",
        )
        controls["more_variants"] = text(
            "more-variants",
            "More variants",
            "One SPEC per line: METHOD[+critical|+critical_auto][:key=value,...], with its own "
            f"budget, alpha and parameters; up to {MAX_VARIANTS} variants in all.",
            (3, 8),
            placeholder="snapkv:budget=256\nadakv+critical:budget=10%,alpha=0.5\n"
            "snapkv+critical:preset=kvpress",
        )
        with gr.Row(elem_id="ablation"):
            bases = [(method.label, method.name) for method in METHODS if method.supports_critical]
            info = (
                "Controls that tell un-pooling, the value norm and alpha apart; the results then "
                "hold a chart of them."
            )
            base = dropdown(
                "ablation-base", "Ablation over", info, bases, bases[0][1], min_width=320, scale=0
            )
            button = gr.Button("Add the ablation", elem_id="add-ablation", scale=0, min_width=220)
    return base, button


def _build_diagnostics(controls: dict[str, Any]) -> None:
    with gr.Accordion("Diagnostics", open=False, elem_id="lab-settings"):
        controls["analysis"] = gr.CheckboxGroup(
            ANALYSIS_CHOICES,
            value=list(DEFAULTS.analysis),
            label="Measure",
            info=ANALYSIS_INFO,
            elem_id="analysis",
        )
        controls["follow_ups"] = text(
            "follow-up-questions",
            "Follow-up questions",
            f"One per line, up to {MAX_FOLLOW_UPS}; asked of the same evicted caches. Needs "
            "the scenario context-only, where the cache does not depend on the question.",
            (2, 8),
        )


def preset_updates(preset: str, alpha: str) -> list[Any]:
    """Alpha and the advanced parameters' shown defaults under a preset.

    An alpha that the reader changed stays.
    """
    known = {str(shown_default(PARAMETERS["alpha"], name)) for name in ("paper", "kvpress")}
    default = str(shown_default(PARAMETERS["alpha"], preset))
    new_alpha = default if alpha.strip() in known else gr.skip()
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
    head = (f"parameter-{parameter.name}", parameter.name, parameter.help)
    if parameter.choices:
        return dropdown(*head, _parameter_choices(parameter, "paper"), "", min_width=220)
    return text(*head, placeholder=placeholder(parameter, "paper"), min_width=220)


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
