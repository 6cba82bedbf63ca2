"""Means over several prompts, with bootstrap intervals and n. No torch.

One prompt is one sample: heads and layers of a prompt are not independent and are averaged first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

from ckv_core.errors import ConfigError
from ckv_core.events import RunResult
from ckv_core.quantities import QUANTITIES
from ckv_core.records import VariantResult
from ckv_core.sweep_reading import FIGURES

MIN_PROMPTS = 5  # of fewer, resampling says more about the few than about the rest
CONFIDENCE = 0.95
_RESAMPLES = 4999
_SEED = 20250204

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over prompts.

    Attributes:
        low, high: 95 % bootstrap interval; None of too few prompts.
        n: prompts.
    """

    mean: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadWins:
    """Heads whose mean L1 over the prompts is below the base's (the paper's figure 2).

    Attributes:
        wins: [layers, query_heads] bool; False where nothing was measured.
        heads: heads counted.
    """

    wins: NDArray[np.bool_]
    heads: int

    @property
    def count(self) -> int:
        """Heads that improve."""
        return int(self.wins.sum())

    @property
    def share(self) -> float:
        """Of the heads counted."""
        return self.count / self.heads if self.heads else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aggregate:
    """One variant over all prompts.

    Attributes:
        figures: by key of `sweep_reading.FIGURES`; `improved_heads`; `tightness`, the mean over
            heads of L1 / theta; and by name of a quantity, its mean over heads, layers or steps.
        head_wins: None without a base.
        sigma_over_half: share of (prompt, head) pairs whose stage-1 mass is over 0.5; None if the
            bounds were not measured.
        violations: (prompt, head) pairs with sigma over 0.5 where the chain
            L1 <= theta <= theta-hat <= relaxed does not hold; None as above.
        checked: such pairs in all.
    """

    spec: str
    label: str
    figures: Mapping[str, Interval]
    head_wins: HeadWins | None
    sigma_over_half: float | None
    violations: int | None
    checked: int = 0
    notes: tuple[str, ...] = field(default=())


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval: bias-corrected and accelerated bootstrap with a fixed seed.

    Raises:
        ConfigError: no value.
    """
    sample = np.asarray(values, np.float64)
    if not sample.size:
        raise ConfigError("There is nothing to average; run at least one prompt.")
    mean, n = float(sample.mean()), len(sample)
    if n < MIN_PROMPTS:
        return Interval(mean, None, None, n)
    if np.ptp(sample) == 0:  # nothing to resample
        return Interval(mean, mean, mean, n)
    found = bootstrap(
        (sample,),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="BCa",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return Interval(mean, float(found.low), float(found.high), n)


def interval_note(n: int) -> str | None:
    """Why there is no interval; None where there is one."""
    if n >= MIN_PROMPTS:
        return None
    return (
        f"{n} prompt{'' if n == 1 else 's'}: an interval needs at least {MIN_PROMPTS}, so only "
        "means are shown."
    )


def aggregate(results: Sequence[RunResult]) -> list[Aggregate]:
    """Every variant of runs of the same variants on several prompts.

    Raises:
        ConfigError: no run, or their variants differ.
    """
    if not results:
        raise ConfigError("There is nothing to average; run at least one prompt.")
    specs = [variant.spec for variant in results[0].variants]
    if any([variant.spec for variant in result.variants] != specs for result in results):
        raise ConfigError("The runs have different variants; average runs of the same ones.")
    rows = zip(*(result.variants for result in results), strict=True)
    return [_aggregate(variants) for variants in rows]


def _aggregate(variants: Sequence[VariantResult]) -> Aggregate:
    readers: dict[str, Callable[[VariantResult], float | None]] = {
        **{key: figure.read for key, figure in FIGURES.items()},
        "improved_heads": _improved,
        "tightness": _tightness,
        **{name: _mean_of(name) for name in QUANTITIES},
    }
    figures = {}
    for key, read in readers.items():
        values = [value for value in map(read, variants) if value is not None]
        if values:
            figures[key] = mean_interval(values)
    notes = tuple(
        f"{key}: known in {figure.n} of {len(variants)} prompts."
        for key, figure in figures.items()
        if figure.n < len(variants)
    )
    sigma, violations, checked = _chain(variants)
    return Aggregate(
        spec=variants[0].spec,
        label=variants[0].label,
        figures=figures,
        head_wins=_head_wins(variants),
        sigma_over_half=sigma,
        violations=violations,
        checked=checked,
        notes=notes,
    )


def _improved(variant: VariantResult) -> float | None:
    return variant.perturbation.improved_head_share if variant.perturbation else None


def _tightness(variant: VariantResult) -> float | None:
    theta = variant.analysis.get("theta")
    if theta is None or variant.perturbation is None:
        return None
    heads = variant.perturbation.head_l1
    known = ~np.isnan(heads) & (theta > 0)
    return float((heads[known] / theta[known]).mean(dtype=np.float64)) if known.any() else None


def _mean_of(name: str) -> Callable[[VariantResult], float | None]:
    def read(variant: VariantResult) -> float | None:
        array = variant.analysis.get(name)
        if array is None or np.isnan(array).all():
            return None
        return float(np.nanmean(array, dtype=np.float64))

    return read


def _head_wins(variants: Sequence[VariantResult]) -> HeadWins | None:
    measured = [variant.perturbation for variant in variants if variant.perturbation]
    bases = [each.base_head_l1 for each in measured if each.base_head_l1 is not None]
    if not bases or len(bases) != len(variants):
        return None
    own: Values = np.mean([each.head_l1 for each in measured], axis=0, dtype=np.float64)
    base: Values = np.mean(bases, axis=0, dtype=np.float64)
    return HeadWins(wins=own < base, heads=int((~np.isnan(own)).sum()))


def _chain(variants: Sequence[VariantResult]) -> tuple[float | None, int | None, int]:
    """Share of heads with sigma over 0.5, violations among them, and how many they are."""
    over = violations = heads = 0
    for variant in variants:
        parts = [variant.analysis.get(n) for n in ("theta", "theta_hat", "theta_relaxed")]
        sigma = variant.analysis.get("sigma_stage1")
        if sigma is None or variant.perturbation is None or any(p is None for p in parts):
            continue
        chain = [variant.perturbation.head_l1, *(part for part in parts if part is not None)]
        supported = sigma > 0.5
        heads += int((~np.isnan(sigma)).sum())
        over += int(supported.sum())
        size = variant.analysis.get("value_mass", chain[-1])
        # float32 sums of a few thousand terms: a millionth of C is rounding
        slack = 1e-6 * np.abs(size)
        broken = np.zeros_like(supported)
        for smaller, larger in pairwise(chain):
            broken |= smaller > larger + slack
        violations += int((broken & supported).sum())
    return (over / heads, violations, over) if heads else (None, None, 0)
