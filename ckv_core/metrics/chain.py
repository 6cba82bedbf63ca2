"""Whether the chain of bounds held: L1 <= theta <= theta-hat <= relaxed theta. No torch."""

from dataclasses import dataclass

import numpy as np

from ckv_core.records import Float32Array, VariantResult

ASSUMED_MASS = 0.5  # the paper's assumption 1 on sigma; the last step of the chain needs it
# Of C, all attention times value norm: float32 sums of a few thousand terms differ by less.
ROUNDING = 1e-6
_BOUNDS = ("theta", "theta_hat", "theta_relaxed")


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


def chain_of(variant: VariantResult) -> Float32Array | None:
    """L1, theta, theta-hat, relaxed theta [4, layers, query_heads]; None if not all measured."""
    found = [variant.analysis[name] for name in _BOUNDS if name in variant.analysis]
    if variant.perturbation is None or len(found) < len(_BOUNDS):
        return None
    return np.stack([variant.perturbation.head_l1, *found])


def check_chain(variant: VariantResult) -> ChainCheck | None:
    """Count heads, those that the theorems cover, and those of them that break the chain."""
    chain = chain_of(variant)
    sigma, size = (variant.analysis.get(name) for name in ("sigma_stage1", "value_mass"))
    if chain is None or sigma is None or size is None:
        return None
    known = np.isfinite(sigma) & np.isfinite(chain).all(axis=0)
    covered = known & (sigma > ASSUMED_MASS)
    broken = covered & (chain[:-1] > chain[1:] + ROUNDING * size).any(axis=0)
    return ChainCheck(int(known.sum()), int(covered.sum()), int(broken.sum()))
