"""LU-KV: heads share the budget by a table of where evicting cost least over many later tokens.

The authors' scores are Expected Attention's; `rule=utility_curves` takes those of any method. The
budget is exact; theirs is whatever the averaged table gives at the nearest percent.
"""

from fractions import Fraction
from hashlib import blake2b

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.expected_attention import OFFSET, ExpectedAttention
from ckv_core.methods.headkv import TABLE
from ckv_core.methods.parts.base import RECENT, BudgetRule, Candidates, Parameters, Scorer
from ckv_core.methods.parts.rules import integer_shares
from ckv_core.methods.parts.views import Table

LEVELS = 99  # shares of all entries that go, 1 to 99 %
UTILITY = "utility"  # the table that is made for each scorer


class KeptExpectedAttention(ExpectedAttention):
    """With the offset, first and last tokens of LU-KV's authors."""

    name = "expected_attention_kept"
    parameters = (
        *(OFFSET.but(default=0.02) if k is OFFSET else k for k in ExpectedAttention.parameters),
        RECENT.but(default=1),
    )


class UtilityCurves(BudgetRule):
    """A table says which share of each head goes where so many of all entries go (2602.08585)."""

    parameters = (TABLE.but(default=UTILITY),)

    def tables(self, scorer: Scorer | None, parameters: Parameters) -> tuple[Table, ...]:
        return () if scorer is None else (curves_table(scorer, parameters),)

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        table = curves_table(candidates.scorer, parameters)
        always, entries = candidates.protected, candidates.entries
        curves = candidates.head_table(table)
        gone = 1 - Fraction(spare + always, entries + always)
        level = min(max(round(100 * gone), 1), LEVELS)
        shape = (candidates.layers, candidates.kv_heads)
        budgets = curve_budgets(curves[level - 1].flatten().tolist(), spare, entries, always)
        return torch.tensor(budgets, dtype=torch.int64).view(shape)


def curves_table(scorer: Scorer, parameters: Parameters) -> Table:
    """The table of a name; the one that is made has a name for each scorer and its settings."""
    name = str(parameters["table"])
    if name != UTILITY:
        return Table(name, "curves")
    key = repr(scorer.key({**parameters, "budget": ""})).encode()
    return Table(f"{UTILITY}-{blake2b(key, digest_size=4).hexdigest()}", "curves", own=True)


def curve_budgets(gone: list[float], spare: int, entries: int, always: int) -> list[int]:
    """Head budgets beyond the protected entries, all layers' heads in a row.

    A head's share is what its curve leaves beyond the protected ones; shares are scaled to the
    total, and are equal where the curves leave nothing.

    Args:
        gone: of each head, the share of its entries that goes.
        spare: mean entries per head.
        entries: that a head has to choose from.
        always: protected ones of each head.
    """
    left = [max((1 - Fraction(each)) * (entries + always) - always, Fraction(0)) for each in gone]
    left = left if any(left) else [Fraction(1)] * len(left)
    total, whole = len(left) * spare, sum(left)
    return integer_shares([total * each / whole for each in left], total, entries)


register(
    name="lu_kv",
    label="LU-KV",
    summary="Expected Attention's scores; heads that lose little in later steps keep less.",
    source="Tang et al. 2026, arXiv:2602.08585",
    scorer=KeptExpectedAttention(),
    budget_rule=UtilityCurves(),
)
