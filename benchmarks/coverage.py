"""How often the 95 % intervals of docs/reference/definitions.md hold the truth, by simulation.

Values without bounds are drawn from shapes that L1 over texts has: even, skewed, and with rare
large values. Scores and differences have rates that answers have.
"""

import argparse
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.tables import table
from ckv_core.experiment.stats import (
    Interval,
    Values,
    difference_interval,
    mean_interval,
    score_interval,
)

COUNTS = (5, 10, 15, 20, 30, 40)
Draw = Callable[[np.random.Generator, int], Values]


def _changes(random: np.random.Generator, n: int) -> Values:
    """8 % lost, 5 % won."""
    roll = random.random(n)
    return np.where(roll < 0.08, -1.0, np.where(roll > 0.95, 1.0, 0.0))


def _half_exact(random: np.random.Generator, n: int) -> Values:
    """F1 of answers of which half are exact."""
    return np.where(random.random(n) < 0.5, 1.0, random.random(n))


CASES: dict[str, tuple[Callable[[Sequence[float]], Interval], Draw, float]] = {
    "normal": (mean_interval, lambda random, n: random.normal(0, 1, n), 0.0),
    "exponential": (mean_interval, lambda random, n: random.exponential(1, n), 1.0),
    "lognormal, sigma 1": (
        mean_interval,
        lambda random, n: random.lognormal(0, 1, n),
        float(np.exp(0.5)),
    ),
    "score, 50 % right": (score_interval, lambda random, n: random.binomial(1, 0.5, n), 0.5),
    "score, 90 % right": (score_interval, lambda random, n: random.binomial(1, 0.9, n), 0.9),
    "score, half exact": (score_interval, _half_exact, 0.75),
    "difference, 5 % lost": (
        difference_interval,
        lambda random, n: -random.binomial(1, 0.05, n).astype(float),
        -0.05,
    ),
    "difference, 8 % lost, 5 % won": (difference_interval, _changes, -0.03),
}


def coverage(case: str, n: int, draws: int, seed: int = 7) -> float:
    """Share of a case's intervals that hold the truth; one without ends holds nothing."""
    interval, draw, truth = CASES[case]
    random = np.random.default_rng((seed, n))
    held = 0
    for _ in range(draws):
        found = interval(draw(random, n).tolist())
        if found.low is not None and found.high is not None:
            held += found.low <= truth <= found.high
    return held / draws


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    draws = parser.parse_args().draws
    table(
        f"95 %, {draws:,} draws: share of intervals that hold the truth",
        ("case", *(f"n = {n}" for n in COUNTS)),
        [(case, *(f"{coverage(case, n, draws):.1%}" for n in COUNTS)) for case in CASES],
    )


if __name__ == "__main__":
    main()
