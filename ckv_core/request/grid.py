"""A sweep before it runs: the grid of points, the request, and what it will cost. No torch."""

from dataclasses import dataclass, replace

from ckv_core.errors import ConfigError
from ckv_core.methods import PARAMETERS
from ckv_core.request.compare_request import DEFAULT_MODEL, MAX_SWEEP_POINTS, CompareRequest
from ckv_core.request.variants import VariantSpec, spec_without

ASK_ABOVE_S = 120.0  # a sweep that is expected to take longer must be confirmed
DEFAULT_PARAMETERS = 134_515_008  # of the default model, whose times the estimate is made of
# Seconds of the default model in float32 on two CPU cores, torch 2.13: prefill of 2,064 tokens 3.3
# and of 8,000 tokens 21; selecting and measuring 51 points at 1,968 tokens 2.4, half of it growing
# with the prompt; a decoding step of 1 row 0.045 and of 8 rows 0.077. A busy machine
# takes up to twice as long. Bounds and oracles: 11 points at 666 tokens 1.0 and at 1,395 tokens 1.3
# on one thread of a busy machine, taken by half.
PREFILL_TOKEN, PREFILL_PAIR = 1.2e-3, 1.8e-7  # per prompt token, and per its square
POINT, POINT_TOKEN = 0.025, 1.2e-5  # per point, and per point and prompt token
BOUNDS, BOUNDS_TOKEN = 0.04, 1.5e-5  # the same where bounds and oracles are measured
STEP, STEP_ROW = 0.04, 0.005  # per decoding step of a group of rows, and per step and row


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepGrid:
    methods: tuple[str, ...]  # SPECs without budget and alpha
    budgets: tuple[str, ...]  # as in a SPEC
    alphas: tuple[str, ...] = ()  # as in a SPEC; only `+critical` methods take them

    def variants(self) -> tuple[str, ...]:
        """SPECs of all points, `full` first; a point that two rows of the grid share is one.

        Rows share it too where one of them writes out a setting that is the default.

        Raises:
            ConfigError: an empty side, a wrong value or method, or too many points.
        """
        if not self.methods:
            raise ConfigError("Choose at least one method to sweep.")
        budgets = tuple(
            dict.fromkeys(str(PARAMETERS["budget"].parse(text)) for text in self.budgets)
        )
        alphas = tuple(
            dict.fromkeys(f"{PARAMETERS['alpha'].parse(text):g}" for text in self.alphas)
        )
        if not budgets:
            raise ConfigError("Give at least one budget to sweep.")
        points: dict[tuple[object, ...], str] = {}
        for method in self.methods:
            spec = VariantSpec.parse(method)
            _check_method(spec)
            takes_alpha = "alpha" in spec.params
            if takes_alpha and not alphas:
                raise ConfigError(f"Give at least one alpha to sweep {method!r} over.")
            for alpha in alphas if takes_alpha else ("",):
                for budget in budgets:
                    extra = {"budget": budget, **({"alpha": alpha} if alpha else {})}
                    point = VariantSpec.parse(spec.spec, extra)
                    points.setdefault(point.settings(), point.spec)
        count = len(points) + 1
        if count > MAX_SWEEP_POINTS:
            raise ConfigError(
                f"The sweep has {count} points, the full cache among them; the limit is "
                f"{MAX_SWEEP_POINTS}. Take fewer budgets, alphas or methods."
            )
        return ("full", *points.values())

    @classmethod
    def around(cls, variants: tuple[str, ...]) -> "SweepGrid":
        """The smallest grid that holds these points; that of a sweep's request gives it again."""
        methods: dict[tuple[object, ...], str] = {}
        budgets: dict[str, None] = {}
        alphas: dict[str, None] = {}
        for spec in map(VariantSpec.parse, variants):
            if not spec.method.evicts:
                continue
            settings = spec.settings("budget", "alpha")
            methods.setdefault(settings, spec_without(spec.spec, "budget", "alpha"))
            budgets[str(spec.params["budget"])] = None
            if "alpha" in spec.params:
                alphas[f"{spec.params['alpha']:g}"] = None
        return cls(methods=tuple(methods.values()), budgets=tuple(budgets), alphas=tuple(alphas))

    def request(self, prompt: CompareRequest) -> CompareRequest:
        """The sweep of this grid on a prompt, model and number of new tokens."""
        return replace(prompt, kind="sweep", variants=self.variants(), defaults={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a sweep takes, before it runs."""

    points: int  # variants, the full cache among them
    seconds: float  # estimate; the default model's where the size of another one is not known
    prompt_tokens: int  # counted by the model, or a guess
    is_counted: bool  # which of the two
    model: str  # as the request names it
    parameters: int | None  # of the model; None where it is not known

    @property
    def is_guess(self) -> bool:
        """Whether the model is another one than was measured, and of unknown size."""
        return self.parameters is None and self.model != DEFAULT_MODEL

    @property
    def must_ask(self) -> bool:
        """Whether the sweep has to be confirmed."""
        return self.is_guess or self.seconds > ASK_ABOVE_S

    @property
    def amount(self) -> str:
        """`29 points on 2,000 prompt tokens`."""
        tokens = f"{self.prompt_tokens:,} prompt tokens" + ("" if self.is_counted else " or so")
        return f"{self.points} points on {tokens}"

    @property
    def duration(self) -> str:
        """`12 seconds` or `4 minutes`."""
        if self.seconds < 90:
            count = max(1, round(self.seconds))
            return "1 second" if count == 1 else f"{count} seconds"
        return f"{round(self.seconds / 60)} minutes"

    @property
    def basis(self) -> str:
        """What the estimate is made of, to follow `estimated from`."""
        times = "the default model's times on two CPU cores"
        if self.is_guess:
            return f"{times}; a larger model takes longer"
        if _scale(self.parameters) > 1:
            return f"{times}, times {_scale(self.parameters):,.1f} for this model's size"
        return times


def sweep_cost(
    request: CompareRequest, prompt_tokens: int, *, is_counted: bool, parameters: int | None = None
) -> Cost:
    """Points and seconds of a sweep, the model loaded and the prompt not yet processed."""
    points, has_bounds = len(request.variants), "bounds" in request.analysis
    new = request.max_new_tokens
    return Cost(
        points=points,
        seconds=estimate_seconds(prompt_tokens, points, new, parameters, has_bounds=has_bounds),
        prompt_tokens=prompt_tokens,
        is_counted=is_counted,
        model=request.model,
        parameters=parameters,
    )


def estimate_seconds(
    prompt_tokens: int,
    points: int,
    max_new_tokens: int,
    parameters: int | None = None,
    *,
    has_bounds: bool = False,
) -> float:
    """What a sweep is expected to take on two CPU cores.

    A model larger than the default one takes longer by as much as it has more parameters; that
    is rough, and no smaller one is taken for faster. `points` has `full` among them.
    """
    prefill = prompt_tokens * (PREFILL_TOKEN + prompt_tokens * PREFILL_PAIR)
    measured = points * (POINT + prompt_tokens * POINT_TOKEN)
    if has_bounds:
        measured += points * (BOUNDS + prompt_tokens * BOUNDS_TOKEN)
    decoded = max_new_tokens * (-(-points // 31) * STEP + points * STEP_ROW)
    return _scale(parameters) * (prefill + measured + decoded)


def _scale(parameters: int | None) -> float:
    return 1.0 if parameters is None else max(1.0, parameters / DEFAULT_PARAMETERS)


def _check_method(spec: VariantSpec) -> None:
    if not spec.method.evicts:
        raise ConfigError("The full cache is part of every sweep; remove it from the methods.")
    fixed = [key for key in ("budget", "alpha") if key in spec.given]
    if fixed:
        raise ConfigError(
            f"{spec.spec!r} sets {' and '.join(fixed)}, which the sweep varies; leave that out."
        )
