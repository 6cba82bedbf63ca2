"""Errors and power of the decision, by simulation: how often a claim is wrong, how soon it comes.

Looks: after every 20 of up to 400 samples, and a claim counts if it is made at any of them.
"""

import argparse
from collections.abc import Sequence
from math import log

import numpy as np
import scipy

from benchmarks.tables import table
from ckv_core.experiment.decide import ALPHA, BETS, WEIGHTS, closed
from ckv_core.experiment.stats import Values

SAMPLES, STEP, METHODS = 400, 20, (1, 7, 12)
KINDS = ("unrelated", "sharing hard samples", "with 3 % gains", "fractional")
TOLERANCES = (0.02, 0.05, 0.1, 0.2)
ENOUGH = -log(ALPHA)
_AT_ONCE = 20  # repetitions in memory


def losses(random: np.random.Generator, kind: str, means: Sequence[float], methods: int) -> Values:
    """Losses [repetitions, methods, budgets, samples] of these means, a mean a budget."""
    shape = (_AT_ONCE, methods, len(means), SAMPLES)
    share = {"unrelated": 0.0, "fractional": 0.5}.get(kind, 0.7)  # of what makes a sample hard
    hard = random.standard_normal((_AT_ONCE, 1, 1, SAMPLES), np.float32)
    own = random.standard_normal(shape, np.float32)
    luck = scipy.special.ndtr(share**0.5 * hard + (1 - share) ** 0.5 * own)
    mean = np.asarray(means)[:, None]
    if kind == "fractional":  # 40 % of the scores change, by a part
        at = (1 + mean / 0.4) / 2
        return np.where(luck < 0.4, 2 * random.beta(6 * at, 6 * (1 - at), shape) - 1, 0.0)
    gains = 0.03 if kind == "with 3 % gains" else 0.0
    return (luck < mean + gains).astype(float) - (luck > 1 - gains)


def evidence(ratio: Values, step: int = STEP) -> Values:
    """Log E [looks, ...] of ratios [..., samples], after every `step` samples."""
    blocks = ratio.reshape(*ratio.shape[:-1], -1, step)
    with np.errstate(divide="ignore"):
        logs = [np.log((1 - bet + bet * blocks).prod(-1)).cumsum(-1) for bet in BETS]
    sums = [each + log(weight) for each, weight in zip(logs, WEIGHTS, strict=True)]
    found: Values = np.moveaxis(np.logaddexp.reduce(sums), -1, 0)
    return found


def errors(kind: str, tolerance: float, repetitions: int, seed: int = 11) -> list[float]:
    """Share of runs with any false "keeps", then of any false "loses", for 1, 7 and 12 methods.

    Of two layouts the worse: all of four budgets are at the tolerance; the first in the order of
    testing is not.
    """
    worst = np.zeros(2 * len(METHODS))
    for means in ([tolerance] * 4, [min(0.3, 3 * tolerance), tolerance, tolerance, 0.0]):
        random = np.random.default_rng((seed, len(set(means))))
        false = np.isclose(means, tolerance)
        hits = np.zeros(2 * len(METHODS))
        rounds = max(1, repetitions // _AT_ONCE)
        for _ in range(rounds):
            loss = losses(random, kind, means, max(METHODS))
            keeps = evidence((1 - loss) / (1 - tolerance))[..., ::-1]
            loses = evidence((1 + loss) / (1 + tolerance))
            for at, methods in enumerate(METHODS):
                for claim, order in ((keeps, false[::-1]), (loses, false)):
                    found = [
                        any((closed(look[:methods])[:, order] >= ENOUGH).any() for look in run)
                        for run in claim.swapaxes(0, 1)
                    ]
                    hits[at + len(METHODS) * (claim is loses)] += sum(found)
        worst = np.maximum(worst, hits / (rounds * _AT_ONCE))
    return [float(each) for each in worst]


def samples_to_confirm(tolerance: float, loss: float, draws: int, seed: int = 3) -> list[str]:
    """Samples for a chance of 50 % and of 80 % to confirm, for 1, 7 and 12 methods."""
    most = int(60 / tolerance)
    lost = (np.random.default_rng(seed).random((draws, most)) < loss).astype(float)
    logs = evidence((1 - lost) / (1 - tolerance), step=1)
    cells = []
    for methods in METHODS:
        found = logs >= log(methods / ALPHA)
        first = np.sort(np.where(found.any(0), found.argmax(0) + 1.0, np.inf))
        cells.append("/".join(f"{first[int(share * draws)]:.0f}" for share in (0.5, 0.8)))
    return cells


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=600)
    count = parser.parse_args().repetitions
    head = [f"{claim}, {k} methods" for claim in ("keeps", "loses") for k in METHODS]
    table(
        f"Runs with any false claim, %, {count:,} runs a cell",
        ("scores", "tolerance", *head),
        [
            (kind, f"{100 * each:g}", *(f"{100 * e:.1f}" for e in errors(kind, each, count)))
            for kind in KINDS
            for each in TOLERANCES
        ],
    )
    table(
        f"Samples for a 50 % / 80 % chance to confirm, {count:,} draws",
        ("tolerance", "true loss", *(f"{k} methods" for k in METHODS)),
        [
            (f"{100 * each:g}", f"{100 * loss:g}", *samples_to_confirm(each, loss, count))
            for each in TOLERANCES
            for loss in (0.0, each / 4, each / 2)
        ],
    )


if __name__ == "__main__":
    main()
