"""How often the intervals over prompts hold the truth: by simulation, as docs/definitions.md says.

Means are drawn from three shapes that figures have: even, skewed as L1 over texts is, and with
rare large values; yes-or-no shares from rates that answers have.
"""

import argparse

import numpy as np

from benchmarks.tables import table
from ckv_core.analysis.intervals import mean_ends, share_ends

COUNTS = (5, 10, 15, 20, 30, 40)
RATES = (0.03, 0.1, 0.5, 0.9)
SHAPES = {
    "normal": (lambda random, size: random.normal(0, 1, size), 0.0),
    "exponential": (lambda random, size: random.exponential(1, size), 1.0),
    "lognormal, sigma 1": (lambda random, size: random.lognormal(0, 1, size), float(np.exp(0.5))),
}


def mean_coverage(shape: str, n: int, draws: int, seed: int = 7) -> float:
    """Share of BCa intervals that hold the mean of the shape."""
    draw, truth = SHAPES[shape]
    low, high = mean_ends(draw(np.random.default_rng((seed, n)), (draws, n)))
    return float(((low <= truth) & (truth <= high)).mean())


def share_coverage(rate: float, n: int, draws: int, seed: int = 7) -> float:
    """Share of exact intervals that hold the rate."""
    found = np.random.default_rng((seed, n)).binomial(n, rate, draws)
    ends = {count: share_ends(count, n) for count in set(found.tolist())}
    return float(np.mean([ends[count][0] <= rate <= ends[count][1] for count in found.tolist()]))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    draws = parser.parse_args().draws
    head = [f"n = {n}" for n in COUNTS]
    table(
        f"BCa, 95 %, {draws:,} draws: share of intervals that hold the mean",
        ("shape", *head),
        [(s, *(f"{mean_coverage(s, n, draws):.1%}" for n in COUNTS)) for s in SHAPES],
    )
    table(
        f"Clopper-Pearson, 95 %, {draws:,} draws: share of intervals that hold the rate",
        ("rate", *head),
        [(f"{r:.0%}", *(f"{share_coverage(r, n, draws):.1%}" for n in COUNTS)) for r in RATES],
    )


if __name__ == "__main__":
    main()
