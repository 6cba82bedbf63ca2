"""Equal budgets, and whole numbers from fractional shares with an exact total."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from ckv_core.errors import ConfigError
from ckv_core.methods.parts.base import BudgetRule, Candidates, Parameters
from ckv_core.runtime.lazy_torch import Tensor, torch


class Uniform(BudgetRule):
    """The mean budget for everyone."""

    name = "uniform"
    equal = True

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        return torch.full((candidates.layers, candidates.kv_heads), spare, dtype=torch.int64)


UNIFORM = Uniform()


def integer_shares(shares: Sequence[Fraction], total: int, cap: int) -> list[int]:
    """Largest-remainder rounding to whole entries that sum to `total`; ties go to the lower index.

    A share above `cap` is cut to it and the excess passed on by the same rule.

    Args:
        shares: each >= 0, summing to `total` up to what the cap cuts.
        total: entries to hand out; ConfigError where all shares cannot hold them.
        cap: most entries that one share may get.
    """
    if total > cap * len(shares):
        raise ConfigError(f"{total} entries do not fit into {len(shares)} shares of {cap}.")
    whole = [min(math.floor(share), cap) for share in shares]
    by_remainder = sorted(
        range(len(shares)), key=lambda index: (math.floor(shares[index]) - shares[index], index)
    )
    missing = total - sum(whole)
    while missing > 0:
        for index in by_remainder:
            if missing and whole[index] < cap:
                whole[index] += 1
                missing -= 1
    return whole
