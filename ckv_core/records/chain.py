"""Whether the chain of bounds held: L1 <= theta <= theta-hat <= relaxed theta. No torch.

Everything is read per query head, but for the tightness, which is known per KV head too: one kept
set serves all query heads that share one, so what it can control is the sum of their bounds.
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
    """Share of heads in which a mass, `sigma_stage1` or `sigma_oracle`, is over 0.5.

    None if it was not measured.
    """
    mass = variant.analysis.get(name)
    if mass is None or np.isnan(mass).all():
        return None
    return float((mass[~np.isnan(mass)] > ASSUMED_MASS).mean())


def tightness_of(variant: VariantResult, kv_heads: int | None = None) -> Float32Array | None:
    """L1 / theta [layers, heads], of a KV head both summed; NaN where it is not defined."""
    theta = variant.analysis.get("theta")
    if theta is None or variant.perturbation is None:
        return None
    bound = _sums(theta, kv_heads)
    moved = _sums(variant.perturbation.head_l1, kv_heads)
    return np.divide(moved, bound, out=np.full_like(bound, np.nan), where=bound > 0)


def mean_tightness(variant: VariantResult, kv_heads: int | None = None) -> float | None:
    """Mean of L1 / theta over heads; None if it is defined in none."""
    return mean_of_known(tightness_of(variant, kv_heads))


def group_tightness(variant: VariantResult) -> float | None:
    """The mean tightness over KV heads; None too where each query head has its own."""
    theta, retained = variant.analysis.get("theta"), variant.retained
    if theta is None or retained is None:
        return None
    kv_heads, query_heads = retained.kv_heads, theta.shape[1]
    if kv_heads == query_heads or query_heads % kv_heads:  # an imported run may say anything here
        return None
    return mean_tightness(variant, kv_heads)


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


def _sums(values: Float32Array, kv_heads: int | None) -> Float32Array:
    """[layers, kv_heads] over the query heads of each, which lie side by side; None leaves them."""
    if kv_heads is None:
        return values
    groups = values.reshape(len(values), kv_heads, -1)
    return np.asarray(groups.sum(axis=-1, dtype=np.float64), np.float32)
