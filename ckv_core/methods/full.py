"""Full cache: nothing is evicted; the reference of every comparison.

It costs one entry per token, layer and KV head, and each step reads them all.
"""

from ckv_core.methods.base import register

register(
    name="full",
    label="Full cache",
    summary="Keeps every entry; the reference that the other methods are measured against.",
    source="Vaswani et al. 2017, arXiv:1706.03762",
    budget_rule=None,
)
