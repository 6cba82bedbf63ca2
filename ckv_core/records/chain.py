"""Whether the chain of bounds held: L1 <= theta <= theta-hat <= relaxed theta. No torch.

Everything is read per query head.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckv_core.records.records import Float32Array, VariantResult

ASSUMED_MASS = 0.5  # the paper's assumption 1 on sigma; the last step of the chain needs it
# Of C, all attention times value norm: float32 sums of a few thousand terms differ by less.
ROUNDING = 1e-6
_BOUNDS = ("theta", "theta_hat", "theta_relaxed")
# Figures of the chain's steps, in its order: means over the heads that the theorems cover. Where
# sigma is small theta-hat is beyond all scale, and the relaxed one may be below it.
COVERED = ("covered_l1", *_BOUNDS)


@dataclass(frozen=True, slots=True)
class ChainCheck:
    """How many heads the chain was checked in.

    Attributes:
        heads: with all bounds.
        covered: of those, with sigma over 0.5.
        violations: of those, where a step of the chain is broken.
    """

    heads: int
    covered: int
    violations: int


def mean_of_known(values: Float32Array | None) -> float | None:
    """Mean of all values that are not NaN, which stands for what is not known; None if none is.

    An imported file may hold both infinities, whose mean is NaN.
    """
    if values is None:
        return None
    known = values[~np.isnan(values)]
    with np.errstate(invalid="ignore"):
        return float(known.mean(dtype=np.float64)) if known.size else None


def mean_head_l1(variant: VariantResult) -> float | None:
    """Mean isolated head L1 over the heads of evictable layers; None if there is none."""
    return mean_of_known(variant.perturbation.head_l1 if variant.perturbation else None)


def over_half(variant: VariantResult, name: str) -> float | None:
    """Share of heads in which a mass is over 0.5; None if it was not measured."""
    mass = variant.analysis.get(name)
    if mass is None or np.isnan(mass).all():
        return None
    return float((mass[~np.isnan(mass)] > ASSUMED_MASS).mean())


def tightness_of(variant: VariantResult) -> Float32Array | None:
    """L1 / theta [layers, query_heads]; NaN where it is not defined."""
    theta = variant.analysis.get("theta")
    if theta is None or variant.perturbation is None:
        return None
    moved = variant.perturbation.head_l1
    return np.divide(moved, theta, out=np.full_like(theta, np.nan), where=theta > 0)


def mean_tightness(variant: VariantResult) -> float | None:
    """Mean of L1 / theta over heads; None if it is defined in none."""
    return mean_of_known(tightness_of(variant))


def chain_of(variant: VariantResult) -> Float32Array | None:
    """L1, theta, theta-hat, relaxed theta [4, layers, heads]; None if not all measured."""
    bounds = [variant.analysis[name] for name in _BOUNDS if name in variant.analysis]
    if variant.perturbation is None or len(bounds) < len(_BOUNDS):
        return None
    return np.stack([variant.perturbation.head_l1, *bounds])


def check_chain(variant: VariantResult) -> ChainCheck | None:
    """Count heads, those that the theorems cover, and those of them that break the chain."""
    chain, sigma = chain_of(variant), variant.analysis.get("sigma_stage1")
    size = variant.analysis.get("value_mass")
    if chain is None or sigma is None or size is None:
        return None
    known = _known(chain, sigma)
    covered = known & (sigma > ASSUMED_MASS)
    slack = ROUNDING * size
    broken = covered & (chain[:-1] > chain[1:] + slack).any(axis=0)
    return ChainCheck(int(known.sum()), int(covered.sum()), int(broken.sum()))


def covered_means(variant: VariantResult) -> dict[str, float]:
    """By key of `COVERED`, the mean over the query heads that the theorems cover.

    Empty where they cover none, or where not all bounds were measured.
    """
    chain, sigma = chain_of(variant), variant.analysis.get("sigma_stage1")
    if chain is None or sigma is None:
        return {}
    covered = _known(chain, sigma) & (sigma > ASSUMED_MASS)
    if not covered.any():
        return {}
    means = chain[:, covered].mean(axis=1, dtype=np.float64)
    return dict(zip(COVERED, means.tolist(), strict=True))


def _known(chain: Float32Array, sigma: Float32Array) -> NDArray[np.bool_]:
    """[layers, heads] with all bounds."""
    return np.isfinite(sigma) & np.isfinite(chain).all(axis=0)
