"""StreamingLLM's evidence: newer entries rank higher, whatever they hold (arXiv:2309.17453)."""

from __future__ import annotations

from dataclasses import replace

from ckv_core.methods.parameters import Choice, Parameter
from ckv_core.methods.parts.base import SINKS, Parameters, Scorer
from ckv_core.methods.parts.steps import StepPolicy, StepView
from ckv_core.methods.parts.views import LayerView
from ckv_core.runtime.lazy_torch import Tensor, torch

ROLLING = Parameter(
    name="rolling",
    help="StreamingLLM: on goes on dropping the oldest entries but the sinks while it generates.",
    default="off",
    parse=Choice("rolling", "off", "on"),
)


class Position(Scorer):
    """The position itself; the first tokens are always kept."""

    name = "position"
    parameters = (replace(SINKS, default=4),)
    query_aware = False
    by_position = True
    across_heads = False

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        kv_heads, entries = view.keys.shape[:2]
        # Below 0: a place is no weight.
        places = torch.arange(-entries, 0, dtype=torch.float32, device=view.keys.device)
        return places.expand(kv_heads, -1)


POSITION = Position()


class Roll(StepPolicy):
    """As many entries as the budget says: the sinks and the newest."""

    name = "roll"
    needs_equal = True
    parameters = (ROLLING,)
    reads = ("sinks",)

    def wanted(self, parameters: Parameters) -> bool:
        return parameters["rolling"] == "on"

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        excess = view.positions.shape[1] - int(parameters["budget"])
        if excess <= 0:
            return None
        sinks = int(parameters["sinks"])
        keep = torch.ones_like(view.positions, dtype=torch.bool)
        keep[:, sinks : sinks + excess] = False
        return keep


ROLL = Roll()
