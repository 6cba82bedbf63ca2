"""Scissorhands: what was attended to less than the mean, most often of late, goes first.

As the paper: a record of the last 400 queries, the last 10 tokens always kept. It drops half of the
budget at a time (`drop`), so that it need not choose at every step. Other codes count over the
whole text, or add up attention instead of counting; for a group of query heads the mean attention
counts here, and a question that is read after the context is not recorded. Costs the newest
query's attention at every step and seven numbers an entry.
"""

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.history import DropLow, SeldomLow
from ckv_core.methods.parts.shares import UNIFORM

METHODS.register(
    Method(
        name="scissorhands",
        label="Scissorhands",
        summary="Drops, half of the budget at a time, what newest queries passed over most often.",
        source="Liu et al. 2023, arXiv:2305.17118",
        scorer=SeldomLow(),
        budget_rule=UNIFORM,
        policy=DropLow(),
    )
)
