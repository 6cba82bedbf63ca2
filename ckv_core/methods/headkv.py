"""HeadKV: SnapKV's scores; heads that find needles get more of the budget, in all layers.

The authors publish tables for two models; for others a probe makes one. Their formula and their
words disagree on beta (`beta_sign`); their runs have a window of 8.
"""

import re
from collections.abc import Sequence
from fractions import Fraction

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.errors import ConfigError
from ckv_core.methods.base import register
from ckv_core.methods.parameters import Parameter, ParameterValue, choice
from ckv_core.methods.parts.base import BudgetRule, Candidates, Parameters, Scorer
from ckv_core.methods.parts.rules import integer_shares
from ckv_core.methods.parts.views import Table
from ckv_core.methods.parts.window import WINDOW_SCORER
from ckv_core.methods.pyramidkv import BETA

NEEDLE = "needle"  # the table that the needle probe makes


def table_name(text: str) -> ParameterValue:
    """Reads the name of a table, which is part of a path."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,39}", text, re.ASCII):
        raise ConfigError(
            "table must be a word of at most 40 lower-case letters, digits, - and _; "
            f"got {text[:60]!r}."
        )
    return text


HEAD_BETA = BETA.but(
    default=1.5, help="PyramidKV: the last layer gets 1/beta of the mean; HeadKV: the pool."
)
BETA_SIGN = choice("beta_sign", ("code", "text")).means(
    "HeadKV: the pool is 1/beta of the budget (code, the authors' formula), or all but 1/beta of "
    "it (text, their words)."
)
TABLE = Parameter(
    name="table",
    help="Which table of the model's heads a method takes. The default is made when a model first "
    "needs it; others come from files (`python -m ckv_core heads`).",
    default=NEEDLE,
    parse=table_name,
)


def shares_table(parameters: Parameters) -> Table:
    """The table that says how much each head matters."""
    name = str(parameters["table"])
    return Table(name, own=name == NEEDLE)


class HeadShares(BudgetRule):
    """Every head keeps what is not in the pool, and its share of the pool (arXiv:2410.19258)."""

    parameters = (HEAD_BETA, BETA_SIGN, TABLE)

    def tables(self, scorer: Scorer | None, parameters: Parameters) -> tuple[Table, ...]:
        return (shares_table(parameters),)

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        pooled = 1 / Fraction(str(parameters["beta"]))
        if parameters["beta_sign"] == "text":
            pooled = 1 - pooled
        (rows,) = candidates.head_table(shares_table(parameters)).tolist()
        shape = (candidates.layers, candidates.kv_heads)
        return shared_budgets(rows, spare, candidates.entries, pooled).view(shape)


def shared_budgets(
    rows: Sequence[Sequence[float]], spare: int, evictable: int, pooled: Fraction
) -> Tensor:
    """Head budgets beyond the protected entries, all layers' heads in a row.

    A head gets (1 - pooled) * spare, and pooled * spare * heads times its part of the table's sum;
    equal parts where the table has none for these layers.

    Args:
        rows: [layers][kv_heads], none below 0.
        spare: mean entries per head.
        evictable: entries that a head has to choose from.
        pooled: share of the budget in the pool.
    """
    parts = [Fraction(part) for row in rows for part in row]
    parts = parts if any(parts) else [Fraction(1)] * len(parts)
    total, whole = len(parts) * spare, sum(parts)
    shares = [(1 - pooled) * spare + pooled * total * part / whole for part in parts]
    return torch.tensor(integer_shares(shares, total, evictable), dtype=torch.int64)


register(
    name="headkv",
    label="HeadKV",
    summary="SnapKV's scores; heads that find needles in a probe get more of the budget.",
    source="Fu et al. 2024, arXiv:2410.19258",
    scorer=WINDOW_SCORER,
    budget_rule=HeadShares(),
)
