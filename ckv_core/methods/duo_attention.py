"""DuoAttention: some KV heads keep everything, the others the first and the newest tokens.

The authors train a gate per KV head; here the `table` ranks heads and the budget says how many keep
everything. Without a file of gates the table is HeadKV's needle probe.
"""

from ckv_core.base.lazy_torch import Tensor
from ckv_core.methods.base import register
from ckv_core.methods.headkv import TABLE, shares_table
from ckv_core.methods.parameters import Parameter
from ckv_core.methods.parts.base import (
    RECENT,
    SINKS,
    BudgetRule,
    Candidates,
    Parameters,
    Scorer,
)
from ckv_core.methods.parts.views import Table
from ckv_core.methods.streaming_llm import Position

STREAMING: tuple[Parameter, ...] = (SINKS.but(default=4), RECENT.but(default=28))


class Streaming(Position):
    """The position itself; the first and the last tokens are always kept."""

    parameters = STREAMING


class WholeHeads(BudgetRule):
    """Heads in the table's order keep everything as long as the budget lasts, the others nothing.

    Beyond what is always kept; the last one that gets anything gets what is left.
    """

    parameters = (TABLE,)

    def tables(self, scorer: Scorer | None, parameters: Parameters) -> tuple[Table, ...]:
        return (shares_table(parameters),)

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        (worth,) = candidates.head_table(shares_table(parameters))
        budgets = granted(worth.flatten(), worth.numel() * spare, candidates.entries)
        return budgets.view(worth.shape)


def granted(worth: Tensor, total: int, most: int) -> Tensor:
    """Give `most` to each in turn, the highest worth first, until `total` is gone, [places] int64.

    Ties: the earlier place.
    """
    turn = worth.argsort(dim=-1, descending=True, stable=True).argsort()
    return (total - turn * most).clamp(0, most)


register(
    name="duo_attention",
    label="DuoAttention",
    summary="Heads that find needles keep all tokens; other heads keep the first and the newest.",
    source="Xiao et al. 2024, arXiv:2410.10819",
    scorer=Streaming(),
    budget_rule=WholeHeads(),
)
