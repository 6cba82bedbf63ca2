"""A sweep before it runs: the grid of points, the request, and what it will cost. No torch."""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ckv_core.errors import ConfigError, about
from ckv_core.methods import PARAMETERS
from ckv_core.records.run_request import DEFAULT_MODEL, MAX_SWEEP_POINTS, RunRequest
from ckv_core.records.variants import VariantSpec, spec_without

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


def with_points(
    request: RunRequest, budgets: Sequence[str], alphas: Sequence[str] = ()
) -> RunRequest:
    """The request at one budget and alpha, or the sweep of its variants at several of either.

    Args:
        request: its defaults hold neither budget nor alpha.
        budgets: as in a SPEC; none for the default.
        alphas: the same.

    Raises:
        ConfigError: a wrong value or variant, too many points, or an analysis of one point.
    """
    grid = SweepGrid(
        methods=request.variants,
        budgets=_distinct("budget", budgets),
        alphas=_distinct("alpha", alphas),
    )
    if max(len(grid.budgets), len(grid.alphas)) <= 1:
        own = {"budget": grid.budgets, "alpha": grid.alphas}
        given = {name: texts[0] for name, texts in own.items() if texts}
        return replace(request, defaults={**request.defaults, **given})
    if others := sorted({*request.analysis} - {"bounds"}):
        with about("analysis"):
            raise ConfigError(
                f"The analysis {' and '.join(others)} needs one budget and one alpha; at several, "
                "take bounds alone."
            )
    return replace(request, kind="sweep", variants=grid.variants(request.defaults), defaults={})


def _distinct(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Each value of a parameter once, as a SPEC has it; ConfigError for a wrong one."""
    with about(name):
        values = [PARAMETERS[name].parse(text) for text in texts]
    return tuple(dict.fromkeys(f"{v:g}" if isinstance(v, float) else str(v) for v in values))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepGrid:
    methods: tuple[str, ...]  # SPECs; one that gives a budget or alpha keeps it
    budgets: tuple[str, ...]  # as in a SPEC; none for the default
    alphas: tuple[str, ...] = ()  # the same; only `+critical` methods take them

    def variants(self, defaults: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """SPECs of all points, `full` first; a point that two rows of the grid share is one.

        Rows share it too where one of them writes out a setting that is the default.

        Args:
            defaults: values of further parameters that a SPEC leaves out.

        Raises:
            ConfigError: a wrong value or method, none that evicts, or too many points.
        """
        points: dict[tuple[object, ...], str] = {}
        for method in self.methods:
            spec = VariantSpec.parse(method, defaults)
            if not spec.method.evicts:
                continue
            free = {"alpha": self.alphas, "budget": self.budgets}
            varied = [
                [{name: text} for text in texts]
                for name, texts in free.items()
                if texts and name in spec.params and name not in spec.given
            ]
            for values in product(*varied):
                point = VariantSpec.parse(spec.spec, dict(ChainMap(*values)))
                points.setdefault(point.settings(), point.spec)
        if not points:
            with about("variants"):
                raise ConfigError("Choose at least one method that evicts.")
        if len(points) >= MAX_SWEEP_POINTS:
            raise ConfigError(
                f"The sweep has {len(points) + 1} points, the full cache among them; the limit is "
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """An estimate of what a sweep takes, before it runs."""

    points: int  # variants, the full cache among them
    seconds: float  # estimate; the default model's where the size of another one is not known
    prompt_tokens: int  # counted by the model, or a guess
    is_counted: bool  # which of the two
    model: str  # as the request names it
    parameters: int | None  # of the model; None where it is not known

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
    def text(self) -> str:
        return f"{self.amount}: about {self.duration}, estimated from {self.basis}."

    @property
    def basis(self) -> str:
        """The basis of the estimate, in words that follow `estimated from`."""
        times = "the default model's times on two CPU cores"
        if self.parameters is None and self.model != DEFAULT_MODEL:
            return f"{times}; a larger model takes longer"
        if _scale(self.parameters) > 1:
            return f"{times}, times {_scale(self.parameters):,.1f} for this model's size"
        return times


def sweep_cost(
    request: RunRequest, prompt_tokens: int, *, is_counted: bool, parameters: int | None = None
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
    """Estimate the seconds of a sweep on two CPU cores.

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
