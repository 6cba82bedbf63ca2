"""What another package brings: a scorer of its own, and a method made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckv_core.methods.base import register
from ckv_core.methods.parts.base import Parameters, Scorer
from ckv_core.methods.parts.views import LayerView

if TYPE_CHECKING:
    from torch import Tensor


class ValueSize(Scorer):
    """How large a value's contribution can be, whatever attends to it."""

    name = "value_size"
    query_aware = False
    non_negative = True

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        return self.group(view.value_norms(), view.kv_heads, parameters)


register(
    name="value_size",
    label="Value size",
    summary="Keeps the entries whose values are largest after the output projection.",
    source="an example",
    scorer=ValueSize(),
)
