"""Observed attention: the mean attention that an entry got from the queries that can see it.

It is H2O's attention divided by the number of queries that see an entry. The newest entries have
few such queries, so they rank high.
"""

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.h2o import ACCUMULATED
from ckv_core.methods.parts.base import Parameters, Scorer
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.views import LayerView, Observer


class MeanAttention(Scorer):
    """Accumulated attention over the count of queries from the entry's own on."""

    non_negative = True

    def observes(self, parameters: Parameters) -> tuple[Observer, ...]:
        return (ACCUMULATED,)

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        seen = view.observed(ACCUMULATED)
        return seen / torch.arange(seen.shape[-1], 0, -1, device=seen.device)


register(
    name="observed_attention",
    label="Observed attention",
    summary="Keeps entries of the highest mean attention, over all queries that can see them.",
    source="after Zhang et al. 2023, arXiv:2306.14048",
    scorer=MeanAttention(),
    press=Press("ObservedAttentionPress"),
)
