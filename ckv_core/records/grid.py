"""A sweep before it runs: the grid around given points, and what it will cost. No torch."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ckv_core.errors import CkvError
from ckv_core.records.run_request import DEFAULT_MODEL, MAX_SWEEP_POINTS, Repeats, RunRequest
from ckv_core.records.variants import VariantSpec, spec_without, written_parameters

DEFAULT_PARAMETERS = 134_515_008  # of the default model, whose times the estimate is made of
# Seconds of the default model in float32 on two CPU cores, torch 2.13: prefill of 2,064 tokens 3.3
# and of 8,000 tokens 21; selecting and measuring 51 points at 1,968 tokens 2.4, half of it growing
# with the prompt; a decoding step of 1 row 0.045 and of 8 rows 0.077. A busy machine
# takes up to twice as long. Bounds and oracles: 11 points at 666 tokens 1.0 and at 1,395 tokens 1.3
# on one thread of a busy machine, taken by half.
PREFILL_TOKEN, PREFILL_PAIR = 1.2e-3, 1.8e-7  # per prompt token, and per its square
POINT, POINT_TOKEN = 0.025, 1.2e-5  # per point, and per point and prompt token
# Timing a method: 39 steps at batch 1, then batches of up to half a second a step.
TIMED_STEPS, TIMED_BATCHES = 39, 4
BOUNDS, BOUNDS_TOKEN = 0.04, 1.5e-5  # the same where bounds and oracles are measured
STEP, STEP_ROW = 0.04, 0.005  # per decoding step of a group of rows, and per step and row


def at_points(request: RunRequest, specs: Sequence[str]) -> RunRequest:
    """The request at these points alone, as the smallest grid that holds them where there is one.

    A SPEC that this version cannot read stays as it is.
    """
    written = [written_parameters(spec) for spec in specs]
    listed = replace(request, variants=tuple(specs), places=tuple(range(MAX_SWEEP_POINTS)))
    grid = replace(
        listed,
        variants=tuple(dict.fromkeys(spec_without(spec, "budget", "alpha") for spec in specs)),
        budgets=tuple(dict.fromkeys(own["budget"] for own in written if "budget" in own)),
        alphas=tuple(dict.fromkeys(own["alpha"] for own in written if "alpha" in own)),
    )
    for whole in (grid, listed):
        with suppress(CkvError, KeyError):
            known = {spec.settings(): place for place, spec in enumerate(whole.specs)}
            places = [known[VariantSpec.parse(spec).settings()] for spec in specs]
            return replace(whole, places=tuple(places))
    return replace(listed, places=tuple(range(len(specs))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """An estimate of what a run takes, before it runs.

    Attributes:
        samples, points: to be computed; the full cache of each sample is a point too.
        tokens, longest: of all prompts, and of the longest.
        seconds: the default model's on two CPU cores where the size of another is not known.
        is_counted: whether the model counted the tokens, or they are a guess.
        model: as the request names it.
        parameters: of the model; None where it is not known.
    """

    samples: int
    points: int
    tokens: int
    longest: int
    seconds: float
    is_counted: bool
    model: str
    parameters: int | None

    @property
    def text(self) -> str:
        """`29 points on 2,000 prompt tokens: about 4 min`, and what it is estimated from."""
        guessed = "" if self.is_counted else " or so"
        return (
            f"{self.points} points on {self.tokens:,} prompt tokens{guessed}: about "
            f"{duration(self.seconds)}, estimated from {self.basis}."
        )

    @property
    def basis(self) -> str:
        """The basis of the estimate, in words that follow `estimated from`."""
        times = "the default model's times on two CPU cores"
        if self.parameters is None and self.model != DEFAULT_MODEL:
            return f"{times}; a larger model takes longer"
        if _scale(self.parameters) > 1:
            return f"{times}, times {_scale(self.parameters):,.1f} for this model's size"
        return times


def cost(
    request: RunRequest,
    open_points: Sequence[tuple[int, int]],
    *,
    is_counted: bool = True,
    parameters: int | None = None,
) -> Cost:
    """The cost of a run; `open_points` has each sample's prompt tokens and number of points."""
    new = request.max_new_tokens * (1 + Repeats.parse(request.repeats).count)
    has_bounds, scale = "bounds" in request.analysis, _scale(parameters)
    timed = request.time * (TIMED_STEPS * STEP * scale + TIMED_BATCHES)
    blocks = sum(spec.block > 0 for spec in request.specs)
    decoding = 0 if request.reference else new * STEP

    def seconds(tokens: int, points: int) -> float:
        """Variants without a reference have a prefill, and decode, of their own."""
        again = min(blocks, points) if request.reference else points - 1
        together = estimate_seconds(tokens, points, new, parameters, has_bounds=has_bounds)
        return together + again * scale * (_prefill(tokens) + decoding) + points * timed

    return Cost(
        samples=len(open_points),
        points=sum(points for _, points in open_points),
        tokens=sum(tokens for tokens, _ in open_points),
        longest=max((tokens for tokens, _ in open_points), default=0),
        seconds=sum(seconds(*each) for each in open_points),
        is_counted=is_counted,
        model=request.model,
        parameters=parameters,
    )


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{max(1, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


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
    measured = points * (POINT + prompt_tokens * POINT_TOKEN)
    if has_bounds:
        measured += points * (BOUNDS + prompt_tokens * BOUNDS_TOKEN)
    decoded = max_new_tokens * (-(-points // 31) * STEP + points * STEP_ROW)
    return _scale(parameters) * (_prefill(prompt_tokens) + measured + decoded)


def _prefill(tokens: int) -> float:
    return tokens * (PREFILL_TOKEN + tokens * PREFILL_PAIR)


def _scale(parameters: int | None) -> float:
    return 1.0 if parameters is None else max(1.0, parameters / DEFAULT_PARAMETERS)
