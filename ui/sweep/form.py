"""The sweep form: the prompt, the grid of methods, budgets and alphas, and the way to a request."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import gradio as gr

from ckv_core.request.compare_request import MAX_NEW_TOKENS, MAX_SWEEP_POINTS, CompareRequest
from ckv_core.request.grid import SweepGrid
from ui.compare.examples import Example
from ui.compare.form_values import (
    PromptValues,
    prompt_of,
    read_controls,
    read_list,
    read_new_tokens,
    ticked_specs,
)
from ui.compare.offers import offered, picker_offer
from ui.compare.prompt_controls import (
    Controls,
    build_prompt,
    device_control,
    model_control,
    number,
    text,
)
from ui.components.notice import Notice
from ui.components.variant_picker import VariantPicker
from ui.settings import Settings

DEFAULT_METHODS = ("snapkv", "snapkv+critical:stage2=raw", "snapkv+critical:stage2=pooled")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepForm(PromptValues):
    """The form's values, in the order of the controls.

    Attributes:
        methods: SPECs, without budget and alpha.
        budgets, alphas: lists with commas.
        bounds: whether the bounds are measured, for the curve of sigma.
        generate: whether text is generated; new tokens count only then.
    """

    methods: tuple[str, ...] = DEFAULT_METHODS
    budgets: str = "64, 128, 256, 512"
    alphas: str = "0, 0.25, 0.5"
    bounds: bool = False
    generate: bool = True
    max_new_tokens: int = 32

    @classmethod
    def from_controls(cls, values: Sequence[object]) -> "SweepForm":
        """Of all controls, in order; a client may send anything, which is a ConfigError."""
        given = read_controls(cls, SWEEP_CONTROLS, values)
        ticked = ticked_specs(given["methods"], "method")
        given["methods"] = tuple(spec for spec in ticked if spec != "full")
        given |= {name: bool(given[name]) for name in ("bounds", "generate")}
        tokens = given.pop("max_new_tokens")
        return cls(**given, max_new_tokens=read_new_tokens(tokens) if given["generate"] else 32)

    @classmethod
    def from_request(cls, request: CompareRequest) -> "SweepForm":
        """The form with the prompt of another run, and with the grid if that was a sweep."""
        prompt = cls(**prompt_of(request))  # type: ignore[arg-type]  # texts alone
        if request.kind != "sweep":
            return prompt
        grid = SweepGrid.around(request.variants)
        return replace(
            prompt,
            methods=tuple(offered(spec) or spec for spec in grid.methods),
            budgets=", ".join(grid.budgets),
            alphas=", ".join(grid.alphas) or prompt.alphas,
            bounds="bounds" in request.analysis,
            generate=request.max_new_tokens > 0,
            max_new_tokens=request.max_new_tokens or prompt.max_new_tokens,
        )

    def controls(self) -> list[object]:
        values = [getattr(self, name) for name in SWEEP_CONTROLS]
        return [list(value) if isinstance(value, tuple) else value for value in values]

    def request(self) -> CompareRequest:
        """What to run; still to be validated."""
        grid = SweepGrid(
            methods=self.methods,
            budgets=read_list(self.budgets),
            alphas=read_list(self.alphas),
        )
        tokens, analysis = self.max_new_tokens if self.generate else 0, ("bounds",) * self.bounds
        return grid.request(replace(self.prompt(), max_new_tokens=tokens, analysis=analysis))


SWEEP_CONTROLS: tuple[str, ...] = tuple(f.name for f in fields(SweepForm))
DEFAULTS = SweepForm()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepControls(Controls):
    """The built controls, in the order of `SWEEP_CONTROLS`, and the line of cost."""

    cost_line: gr.HTML


def build_sweep_form(
    settings: Settings, models: Sequence[str], examples: Sequence[Example]
) -> SweepControls:
    controls: dict[str, Any] = {}
    with gr.Row(equal_height=False):
        info = "Optional: looked for where text is generated."
        buttons, context_bar = build_prompt(controls, examples, answer_info=info)
        with gr.Column(scale=4, min_width=320):
            with gr.Row():
                controls["model"] = model_control(models, settings.model)
                controls["device"] = device_control(settings.device)
            _build_grid(controls)
    return SweepControls(
        controls={name: controls[name] for name in SWEEP_CONTROLS},
        examples=buttons,
        context_bar=context_bar,
        cost_line=Notice(elem_id="cost-line"),
    )


def _build_grid(controls: dict[str, Any]) -> None:
    told = "Each at every budget, with CriticalKV also at every alpha."
    offer = picker_offer("Methods", told, DEFAULT_METHODS, with_full=False)
    controls["methods"] = VariantPicker(list(DEFAULT_METHODS), offer=offer, elem_id="methods")
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
