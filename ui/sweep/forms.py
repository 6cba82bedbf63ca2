"""What the sweep form holds, its way to a request, and the cost that is told before. No Gradio."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from ckv_core.errors import ConfigError, PromptError
from ckv_core.request.compare_request import DEFAULT_MODEL, CompareRequest
from ckv_core.request.grid import Cost, SweepGrid, sweep_cost
from ckv_core.worker.messages import TokensCounted
from ui.compare.forms import read_lines, read_new_tokens, read_text
from ui.compare.offers import offered, variant_choices
from ui.results import views

CHARS_PER_TOKEN = 4
# Fields that a request has under the same name and in the same form.
_SAME = ("context", "question", "answer", "scenario", "model", "device")
DEFAULT_METHODS = ("snapkv", "snapkv+critical:stage2=raw", "snapkv+critical:stage2=pooled")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepForm:
    """The form's values as the reader sees them, in the order of the controls.

    Attributes:
        methods: SPECs ticked in the list.
        protect: passages that no method may evict, one per line.
        more_methods: one SPEC per line, without budget and alpha.
        budgets, alphas: lists with commas.
        bounds: whether the bounds are measured, for the curve of sigma.
        generate: whether text is generated; new tokens count only then.
    """

    context: str = ""
    question: str = ""
    answer: str = ""
    scenario: str = "regular"
    protect: str = ""
    model: str = DEFAULT_MODEL
    device: str = "auto"
    methods: tuple[str, ...] = DEFAULT_METHODS
    more_methods: str = ""
    budgets: str = "64, 128, 256, 512"
    alphas: str = "0, 0.25, 0.5"
    bounds: bool = False
    generate: bool = True
    max_new_tokens: int = 32

    @classmethod
    def from_controls(cls, values: Sequence[object]) -> "SweepForm":
        """Of all controls, in order; a client may send anything, which is a ConfigError."""
        given = dict(zip(SWEEP_CONTROLS, values, strict=True))
        ticked = given["methods"]
        if not isinstance(ticked, (list, tuple)):
            raise ConfigError("Choose at least one method.")
        generate = bool(given["generate"])
        rest = ("methods", "bounds", "generate", "max_new_tokens")
        return cls(
            **{name: read_text(given[name]) for name in SWEEP_CONTROLS if name not in rest},
            methods=tuple(
                spec for _, spec in variant_choices() if spec in ticked and spec != "full"
            ),
            bounds=bool(given["bounds"]),
            generate=generate,
            max_new_tokens=read_new_tokens(given["max_new_tokens"]) if generate else 32,
        )

    @classmethod
    def from_request(cls, request: CompareRequest) -> "SweepForm":
        """The form with the prompt of another run, and with the grid if that was a sweep."""
        same = {name: getattr(request, name) for name in _SAME}
        prompt = cls(**same, protect="\n".join(request.protect))
        if request.kind != "sweep":
            return prompt
        grid = SweepGrid.around(request.variants)
        ticked = {spec: offered(spec) for spec in grid.methods}
        return replace(
            prompt,
            methods=tuple(filter(None, ticked.values())),
            more_methods="\n".join(spec for spec, choice in ticked.items() if not choice),
            budgets=", ".join(grid.budgets),
            alphas=", ".join(grid.alphas) or prompt.alphas,
            bounds="bounds" in request.analysis,
            generate=request.max_new_tokens > 0,
            max_new_tokens=request.max_new_tokens or prompt.max_new_tokens,
        )

    def controls(self) -> list[object]:
        """One value per control, in the order of `SWEEP_CONTROLS`."""
        values = [getattr(self, name) for name in SWEEP_CONTROLS]
        return [list(value) if isinstance(value, tuple) else value for value in values]

    def request(self) -> CompareRequest:
        """What to run; still to be validated."""
        grid = SweepGrid(
            methods=(*self.methods, *read_lines(self.more_methods)),
            budgets=read_list(self.budgets),
            alphas=read_list(self.alphas),
        )
        same = {name: getattr(self, name) for name in _SAME} | {"model": self.model.strip()}
        prompt = CompareRequest(
            **same,
            protect=read_lines(self.protect),
            max_new_tokens=self.max_new_tokens if self.generate else 0,
            analysis=("bounds",) if self.bounds else (),
        )
        return grid.request(prompt)


SWEEP_CONTROLS: tuple[str, ...] = tuple(f.name for f in fields(SweepForm))


def cost_sentence(cost: Cost) -> str:
    """For the line under the form."""
    return f"{cost.amount}: about {cost.duration}, estimated from {cost.basis}."


def cost_question(cost: Cost) -> str:
    """Asked before a costly sweep."""
    return (
        f"This sweep has {cost.points} points and takes about {cost.duration} (estimated from "
        f"{cost.basis}); run it?"
    )


def estimate(request: CompareRequest, counted: TokensCounted | None) -> Cost:
    """Points and seconds of a sweep; PromptError for tokens counted over what the model takes."""
    tokens = max(1, (len(request.context) + len(request.question)) // CHARS_PER_TOKEN)
    is_counted = counted is not None and counted.tokens > 0
    if counted is not None and is_counted:
        tokens = counted.tokens
        told = views.count_value(counted, request)
        if told["tone"] == "error":
            raise PromptError(told["text"])
    return sweep_cost(request, tokens, is_counted=is_counted)


def read_list(text: str) -> tuple[str, ...]:
    """The parts of a list such as `64, 128, 10%`."""
    parts = text.replace(";", ",").replace("\n", ",").split(",")
    return tuple(filter(None, (part.strip() for part in parts)))
