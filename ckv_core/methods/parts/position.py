"""StreamingLLM's evidence: newer entries rank higher, whatever they hold (arXiv:2309.17453)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckv_core.lazy_torch import torch
from ckv_core.methods.parts.base import SINKS, Parameters, Scorer
from ckv_core.methods.parts.views import LayerView

if TYPE_CHECKING:
    from torch import Tensor


class Position(Scorer):
    """The position itself; the first tokens are always kept."""

    name = "position"
    knobs = (replace(SINKS, default=4),)
    query_aware = False
    by_position = True

    def protects(self, parameters: Parameters) -> dict[str, slice]:
        return {"sinks": slice(0, int(parameters["sinks"]))}

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        kv_heads, entries = view.keys.shape[:2]
        # Below 0: a place is no weight.
        places = torch.arange(-entries, 0, dtype=torch.float32, device=view.keys.device)
        return places.expand(kv_heads, -1)


POSITION = Position()
