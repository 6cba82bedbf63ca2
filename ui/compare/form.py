"""The form of a run, of one text or many samples: every control with one line about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component

from ckv_core.methods import METHODS, PARAMETERS, POLICIES
from ckv_core.methods.base import own_defaults
from ckv_core.methods.parameters import Parameter
from ckv_core.records.external_selection import MAX_VARIANTS
from ckv_core.records.run_request import DEVICES, DTYPES, MAX_FOLLOW_UPS, meaning
from ui.compare.controls import dropdown, number, text
from ui.compare.form_values import ADVANCED_PARAMETERS, CONTROL_NAMES, FormValues
from ui.compare.offers import DEFAULT_VARIANTS, models_value, picker_offer, shown_default
from ui.compare.samples_form import SAMPLE_AREAS, build_samples
from ui.compare.text_form import build_text
from ui.components.base import ModelLine, ModelList, Notice, RunNotice, SetupLink, VariantPicker
from ui.settings import Settings

DEFAULTS = FormValues()
MODES = [("One text", "text"), ("Many samples", "many")]
SCENARIO_CHOICES = [
    ("Before compression", "regular"),
    ("After (reusable cache)", "context-only"),
]
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
# Part of the form -> one text or the sources of samples that it is for.
AREAS = {
    "text_area": {"text"},
    **SAMPLE_AREAS,
    "text_settings": {"text"},
    "diagnostics_area": {"text"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The built controls by name, in the order of `CONTROL_NAMES`, and what stands beside them.

    Attributes:
        areas: of `AREAS`, which the source shows or hides.
        sample_map: columns of the pasted samples, and the first of them.
        plan: the lines on what so many samples can show, and on what they take.
    """

    controls: dict[str, Any]  # of many kinds
    areas: list[Any]
    context_bar: gr.HTML
    model_line: gr.HTML
    model_list: gr.HTML
    variants_line: gr.HTML
    sample_map: gr.HTML
    plan: list[gr.HTML]
    ablation_base: Any
    ablation_button: gr.Button
    run: gr.Button
    new: gr.Button
    setup_link: gr.HTML
    notice: gr.HTML

    def inputs(self) -> list[Any]:
        return list(self.controls.values())

    def pick(self, *names: str) -> list[Any]:
        return [self.controls[name] for name in names]


def shown_areas(mode: object, source: object) -> list[dict[str, Any]]:
    """Updates of `AREAS`: those for one text or for this source of samples are shown."""
    origin = "text" if mode == "text" else source
    return [gr.update(visible=origin in origins) for origins in AREAS.values()]


def info_of(name: str) -> str:
    """What a field of the request means, as the sentence under its control."""
    sentence = meaning(name)
    return f"{sentence[0].upper()}{sentence[1:]}."


def build_form(settings: Settings, models: Sequence[str], examples: Sequence[str] = ()) -> Form:
    """Lay out the controls; call inside a Blocks context."""
    parts: dict[str, Any] = {}
    with gr.Row(elem_id="ask", equal_height=False):
        with gr.Column(elem_id="ask-text", min_width=0):
            with gr.Row(elem_id="ask-head"):
                parts["mode"] = gr.Radio(
                    MODES, value=DEFAULTS.mode, label="How many texts", elem_id="mode"
                )
                setup_link = SetupLink(elem_id="setup-link", min_width=60)
                new = gr.Button("New", elem_id="new", size="sm", scale=0, min_width=60)
            with gr.Column(elem_id="text-area") as parts["text_area"]:
                context_bar = build_text(parts, examples)
            with gr.Column(visible=False, elem_id="many-area") as parts["many_area"]:
                sample_map, plan = build_samples(parts)
        with gr.Column(elem_id="ask-run", min_width=0):
            model_line, model_list = _build_model(parts, settings.model, models)
            _build_variants(parts)
            with gr.Accordion("Advanced", open=False, elem_id="advanced"):
                base, button = _build_advanced(parts, settings.device)
            with gr.Row(elem_id="actions"):
                run = gr.Button("Run", variant="primary", elem_id="run")
                variants_line = Notice(elem_id="variants-line")
            notice = RunNotice(elem_id="notice")
    return Form(
        controls={name: parts[name] for name in CONTROL_NAMES},
        areas=[parts[name] for name in AREAS],
        context_bar=context_bar,
        model_line=model_line,
        model_list=model_list,
        variants_line=variants_line,
        sample_map=sample_map,
        plan=plan,
        ablation_base=base,
        ablation_button=button,
        run=run,
        new=new,
        setup_link=setup_link,
        notice=notice,
    )


def _build_model(
    parts: dict[str, Any], model: str, models: Sequence[str]
) -> tuple[gr.HTML, gr.HTML]:
    """`model`; returns the line of its state and the list of suggestions."""
    with gr.Column(elem_id="model-area"):
        info = "Choose one, or type a Hugging Face id or a local folder and press Enter."
        size: dict[str, Any] = {"min_width": 260, "allow_custom_value": True}
        parts["model"] = dropdown("model", "Model", info, models, model, **size)
        line = ModelLine(elem_id="model-line")
        return line, ModelList(models_value(models), elem_id="model-list")


def _build_variants(parts: dict[str, Any]) -> None:
    info = "All get the same prompt and the same budget."
    offer = picker_offer("Variants", info, DEFAULT_VARIANTS)
    parts["variants"] = VariantPicker(list(DEFAULT_VARIANTS), offer=offer, elem_id="variants")
    with gr.Row():
        info = "Entries kept per KV head: 128, 10% or 4MiB. Several: 5%, 10%, 20%."
        parts["budget"] = text("budget", "Budget", info, value=DEFAULTS.budget, min_width=120)
        info = "CriticalKV: share chosen by attention alone, 0 to 1. Several: 0, 0.25, 0.5."
        parts["alpha"] = text("alpha", "Alpha", info, value=DEFAULTS.alpha, min_width=120)


def _build_advanced(parts: dict[str, Any], device: str) -> tuple[Component, gr.Button]:
    """Everything that a first run does not need; returns the ablation's base and button."""
    parts["scenario"] = gr.Radio(
        SCENARIO_CHOICES,
        value=DEFAULTS.scenario,
        label="When is the question known?",
        elem_id="scenario",
    )
    info, tokens = info_of("max_new_tokens"), DEFAULTS.max_new_tokens
    parts["max_new_tokens"] = number("max-new-tokens", "New tokens", info, tokens)
    gr.Markdown("An empty field means the default shown in grey. Set here for all variants.")
    with gr.Row(elem_classes=["parameter-grid"]):
        for parameter in ADVANCED_PARAMETERS:
            parts[parameter.name] = parameter_control(parameter)
    with gr.Column() as parts["text_settings"]:
        info = f"One per line. {info_of('protect')}"
        parts["protect"] = text("protect", "Protected text", info, (1, 6))
        with gr.Row():
            head = ("dtype", "dtype", info_of("dtype"))
            parts["dtype"] = dropdown(*head, DTYPES, "auto", min_width=220)
            head = ("device", "Device", info_of("device"))
            parts["device"] = dropdown(*head, DEVICES, device, min_width=120)
        parts["ignore_eos"] = gr.Checkbox(
            label="Ignore EOS", info=info_of("ignore_eos"), elem_id="ignore-eos"
        )
    parts["more_variants"] = text(
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
            "Controls that separate un-pooling, the value norm and alpha; the results then "
            "show a chart of them."
        )
        base = dropdown(
            "ablation-base", "Ablation over", info, bases, bases[0][1], min_width=320, scale=0
        )
        button = gr.Button("Add the ablation", elem_id="add-ablation", scale=0, min_width=220)
    with gr.Column() as parts["diagnostics_area"]:
        _build_diagnostics(parts)
    return base, button


def _build_diagnostics(parts: dict[str, Any]) -> None:
    parts["analysis"] = gr.CheckboxGroup(
        ANALYSIS_CHOICES,
        value=list(DEFAULTS.analysis),
        label="Measure",
        info=ANALYSIS_INFO,
        elem_id="analysis",
    )
    info = f"One per line, up to {MAX_FOLLOW_UPS}. {info_of('follow_ups')}"
    parts["follow_ups"] = text("follow-up-questions", "Follow-up questions", info, (2, 8))


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
