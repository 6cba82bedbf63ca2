"""Which method keeps the full cache's score at which smallest budget. No torch.

The loss of a source is the full cache's score minus the method's, -1 to 1. Evidence for "keeps" and
for "loses more than the tolerance" is an e-value: it is valid for every distribution of losses,
however often somebody looks and however many samples are added. Ville's inequality: the chance that
it ever reaches 20 is at most 5 % where the claim is false. docs/explanation/decisions.md says why
this one; tests/reference/decision.py is a second implementation.
"""

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from math import ceil, log
from typing import Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from ckv_core.experiment.stats import Values

ALPHA = 0.05
STEPS = 1000  # a tolerance and a bound are whole thousandths: 0.1 points
ORDER_SEED = 20261124
FEWEST_SOURCES = 2
# Shares of the capital that are staked on each source, and their weights, chosen by simulation.
BETS = np.array([1.0, 0.75, 0.5, 0.25])
WEIGHTS = np.array([0.45, 0.25, 0.15, 0.15])
_ENOUGH = -log(ALPHA)
_AT_ONCE = 64  # factors of at most 1e4 whose product a float holds
_MOST_NEEDED = 100_000

State = Literal["keeps", "loses", "undecided"]
Losses = tuple[Values, Values]


@dataclass(frozen=True, slots=True)
class PointDecision:
    """One method at one budget.

    Attributes:
        loss: mean over the sources, 0 to 1, of the known results; None where there is none.
        at_most: the loss is at most this with 95 % confidence; in thousandths, 1 where nothing
            less is shown.
        at_least: the same for what is lost at least; None where no loss is shown.
        needed: about how many sources in all would decide it if the loss stays as it is; None of
            a decided point, and where no number would.
        unknown: sources with a cut or failed result, which the bounds count as the worst case.
    """

    state: State
    loss: float | None
    at_most: float
    at_least: float | None
    needed: int | None
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """The decision.

    Attributes:
        n: sources that count.
        can_show_loss: False where not even a method that scores 0 everywhere would be found to
            lose more than the tolerance; then no point keeps.
        points: [methods][budgets].
    """

    n: int
    can_show_loss: bool
    points: tuple[tuple[PointDecision, ...], ...]


def random_order(sources: Sequence[Hashable]) -> list[int]:
    """Places of samples in the order in which they run and count: one source after the other.

    It depends on places alone, so that no name moves a sample to the front.
    """
    places: dict[Hashable, list[int]] = {}
    for at, source in enumerate(sources):
        places.setdefault(source, []).append(at)
    order = [*places.values()]
    random.Random(ORDER_SEED).shuffle(order)  # noqa: S311 - a sample, no secret
    return [at for together in order for at in together]


def counted(settled: Sequence[bool], sources: Sequence[Hashable]) -> list[int]:
    """Places of the samples that count, in the run's random order.

    A source counts when it and all before it are settled, with the samples that stand together in
    the order: what is added later to a source that counted already is in tables only.

    Args:
        settled: [n] whether every point of a sample is scored, cut or failed.
        sources: [n] names.
    """
    found: list[int] = []
    known: set[Hashable] = set()
    for source, group in groupby(range(len(sources)), key=sources.__getitem__):
        places = [*group]
        if not all(settled[at] for at in places):
            break
        found += [] if source in known else places
        known.add(source)
    return found


def losses(full: Values, scores: Values, sources: Sequence[Hashable]) -> tuple[Values, ...]:
    """The lowest, the known and the highest possible loss of each source.

    A sample without a score of the full cache is left out. A method's cut or failed result is
    unknown: its score may be 1 (lowest loss) or 0 (highest loss). Samples of one source are
    averaged.

    Args:
        full: [n] scores, 0 to 1; NaN where there is none.
        scores: [methods, budgets, n]; NaN where a result was cut or failed.
        sources: [n] names.

    Returns:
        Three of [methods, budgets, sources], the known loss NaN where no score is known.
    """
    use = [at for at, score in enumerate(full) if not np.isnan(score)]
    unit = {source: at for at, source in enumerate(dict.fromkeys(sources[at] for at in use))}
    share = np.zeros((len(use), len(unit)))
    share[np.arange(len(use)), [unit[sources[at]] for at in use]] = 1
    loss = (full - scores)[..., use]
    known = ~np.isnan(loss)
    with np.errstate(invalid="ignore"):
        mean = (np.where(known, loss, 0.0) @ share) / (known @ share)
    each = share / np.maximum(share.sum(0), 1)
    low, high = (np.where(known, loss, full[use] - at) @ each for at in (1.0, 0.0))
    return low, mean, high


def decide(
    full: Values,
    scores: Values,
    sources: Sequence[Hashable],
    tolerance: float,
    *,
    former: int = 0,
    once: bool = False,
) -> Choice:
    """Decide from the samples that count; `losses` has full, scores and sources, budgets rising.

    A score of -inf is of a prompt that could not run. Where none could, nothing is claimed of the
    point, and it stops no claim about the method's other budgets: prompts alone say which points
    these are, so the claims that are left are tested as if these were not there.
    `tolerance` is 0 to 1, in thousandths. `former`: methods that were in the run and are no more.
    `once`: of a run whose size was fixed and that is read once, at its end. A point keeps if and
    only if `can_show_loss` holds and its `at_most` is not over the tolerance; it loses if and only
    if its `at_least` is not below.
    """
    is_refused: NDArray[np.bool_] = scores == -np.inf
    low, known, high = losses(full, np.where(is_refused, np.nan, scores), sources)
    methods, budgets, n = low.shape
    step = min(round(STEPS * tolerance), STEPS - 1)
    if n < FEWEST_SOURCES:
        none = PointDecision("undecided", None, 1.0, None, None)
        return Choice(n, can_show_loss=False, points=((none,) * budgets,) * methods)
    # In order, so that the same losses give the same bits whatever their order was.
    low, high = np.sort(low, axis=-1), np.sort(high, axis=-1)
    nothing_right = np.sort(losses(full, np.zeros((1, 1, len(full))), sources)[0], axis=-1)
    can_show_loss = bool(log_e_loses(nothing_right, step / STEPS)[0, 0] >= _ENOUGH)
    to_show = _sources_for((1 + nothing_right[0, 0]) / (1 + step / STEPS), 1)
    out: NDArray[np.bool_] = np.logical_and.reduce(is_refused, axis=-1)
    passed = out & ~out.all(1, keepdims=True)  # a method without any point has no evidence

    def keeps_at(tried: float) -> NDArray[np.bool_]:
        if once:
            return _log_p_keeps(high, tried, passed, former) >= _ENOUGH
        found = np.where(passed, np.inf, log_e_keeps(high, tried))
        return closed(found[:, ::-1], former)[:, ::-1] >= _ENOUGH

    def loses_at(tried: float) -> NDArray[np.bool_]:
        return closed(np.where(passed, np.inf, log_e_loses(low, tried)), former) >= _ENOUGH

    keeps = _each_once(lambda tried: keeps_at(tried) & ~out)
    loses = _each_once(lambda tried: loses_at(tried) & ~out)

    def point(method: int, budget: int) -> PointDecision:
        at = (method, budget)
        most = _first(lambda step: bool(keeps(step)[at]))
        least = -1 if once else _first(lambda step: not loses(step)[at]) - 1
        keeps_it, loses_it = most <= step and can_show_loss, least >= step
        state: State = "keeps" if keeps_it else "loses" if loses_it else "undecided"
        more = None
        may_show = can_show_loss or to_show is not None
        if state == "undecided" and not once and not out[at] and may_show:
            more = needed((low[at], high[at]), step / STEPS, methods + former)
            more = None if more is None else max(more, to_show or 0)
        loss = known[at][~np.isnan(known[at])]
        return PointDecision(
            state,
            float(loss.mean()) if loss.size else None,
            most / STEPS,
            least / STEPS if least >= 0 else None,
            more,
            n - loss.size,
        )

    points = tuple(tuple(point(m, b) for b in range(budgets)) for m in range(methods))
    return Choice(n, can_show_loss, points)


def log_e(ratio: Values) -> Values:
    """Log E against "the mean of the ratio is at most 1"; [..., sources] of at least 0 to [...].

    E = sum over bets c of weight(c) * product over sources of (1 - c + c * ratio). Each factor is
    at least 0 and has a mean of at most 1 under that hypothesis.
    """
    factors = 1 - BETS[:, None] + BETS[:, None] * ratio[..., None, :]
    parts = range(0, max(1, ratio.shape[-1]), _AT_ONCE)
    with np.errstate(divide="ignore"):
        logs = [np.log(factors[..., at : at + _AT_ONCE].prod(-1)) for at in parts]
    found: Values = np.logaddexp.reduce(sum(logs) + np.log(WEIGHTS), axis=-1)
    return found


def log_e_keeps(high: Values, tolerance: float) -> Values:
    """Log E against "the mean loss is the tolerance or more"; [..., sources] to [...]."""
    return log_e((1 - high) / (1 - tolerance))


def log_e_loses(low: Values, tolerance: float) -> Values:
    """Log E against "the mean loss is the tolerance or less"; [..., sources] to [...]."""
    return log_e((1 + low) / (1 + tolerance))


def closed(evidence: Values, former: int = 0) -> Values:
    """Log E of each claim after closed testing over all methods and budgets, [methods, budgets].

    A method's budgets are tested in the order given and stop at the first that fails. Across
    methods an intersection is tested by the mean of the e-values, which is valid under any
    dependence between methods; of the sets of a size that with the smallest others is the worst.
    `former` methods have no evidence at all.
    """
    chain = np.minimum.accumulate(evidence, axis=-1)
    last = np.concatenate([chain[:, -1], np.full(former, -np.inf)])
    others = np.array([np.sort(np.delete(last, at)) for at in range(len(chain))])
    sums = np.logaddexp.accumulate(others[:, None, :], axis=-1)
    joint = np.logaddexp(chain[..., None], sums) - np.log(np.arange(2, len(last) + 1))
    found: Values = np.minimum(chain, joint.min(-1, initial=np.inf))
    return found


def needed(ends: Losses, tolerance: float, methods: int) -> int | None:
    """How many sources in all decide one point if its loss stays as it is; None where none do.

    The first claim of `methods` needs E >= methods / ALPHA. `ends`: lowest and highest losses.
    """
    low, high = ends
    keeps = (low + high).mean() / 2 < tolerance
    ratio = (1 - high) / (1 - tolerance) if keeps else (1 + low) / (1 + tolerance)
    return _sources_for(ratio, methods)


def _sources_for(ratio: Values, methods: int) -> int | None:
    """How many sources like these, [sources], bring the evidence for the first claim."""
    with np.errstate(divide="ignore"):
        growth = np.log(1 - BETS + BETS * ratio[:, None]).mean(0)  # [bets], of log E per source

    def short(n: float) -> float:
        return float(np.logaddexp.reduce(n * growth + np.log(WEIGHTS)) - log(methods / ALPHA))

    if short(_MOST_NEEDED) < 0:
        return None
    return 1 if short(1) >= 0 else ceil(scipy.optimize.brentq(short, 1, _MOST_NEEDED))


def fewest_sources(tolerance: float, methods: int) -> int | None:
    """How many sources confirm this tolerance if nothing is lost."""
    nothing = np.zeros(1)
    return needed((nothing, nothing), tolerance, methods) if tolerance > 0 else None


def least_tolerance(n: int, methods: int, lost: int = 0) -> float | None:
    """The smallest tolerance that n sources can confirm if `lost` of them are; None where none."""
    loss = np.repeat([0.0, 1.0], [n - lost, lost]) if n >= lost else np.ones(1)

    def short(tolerance: float) -> float:
        return float(log_e_keeps(loss, tolerance)) - log(methods / ALPHA)

    if short((STEPS - 1) / STEPS) < 0:
        return None
    return float(scipy.optimize.brentq(short, 1e-6, (STEPS - 1) / STEPS))


def _log_p_keeps(high: Values, tolerance: float, passed: NDArray[np.bool_], former: int) -> Values:
    """-log p of "keeps" for each point, [methods, budgets], tested from the largest budget down.

    The exact binomial test counts the sources that lose anything; p has Bonferroni's correction.
    """
    p = scipy.stats.binom.cdf((high > 0).sum(-1), high.shape[-1], tolerance)
    p = np.where(passed, 0.0, p)[:, ::-1]
    worst = np.maximum.accumulate(p, axis=1)[:, ::-1] * (len(p) + former)
    with np.errstate(divide="ignore"):
        found: Values = -np.log(worst)
    return found


def _each_once(shown: Callable[[float], NDArray[np.bool_]]) -> Callable[[int], NDArray[np.bool_]]:
    """The same claims, [methods, budgets], by a tolerance in thousandths; each is computed once."""
    return cache(lambda step: shown(step / STEPS))


def _first(is_so: Callable[[int], bool]) -> int:
    """The first thousandth below STEPS from which on this holds; STEPS where nowhere."""
    low, high = 0, STEPS
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_so(middle) else (middle + 1, high)
    return low
