"""Random: entries by lot; the floor that any method has to beat.

kvpress makes its generator anew in each layer: with a seed, all layers evict the same positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckv_core.lazy_torch import torch
from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.base import Parameters, Scorer
from ckv_core.methods.parts.lots import SEED, generator
from ckv_core.methods.parts.uniform import UNIFORM
from ckv_core.methods.parts.views import LayerView

if TYPE_CHECKING:
    from torch import Tensor


class Noise(Scorer):
    """Uniform numbers, on the CPU whatever the device: the same everywhere."""

    name = "noise"
    knobs = (SEED,)
    query_aware = False
    non_negative = True

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        kv_heads, entries = view.keys.shape[:2]
        generators = [generator(parameters["seed"], view.layer, head) for head in range(kv_heads)]
        drawn = [torch.rand(entries, generator=each) for each in generators]
        return torch.stack(drawn).to(view.keys.device)


METHODS.register(
    Method(
        name="random",
        label="Random",
        summary="Keeps entries by lot: what a method has to beat.",
        source="a control",
        scorer=Noise(),
        budget_rule=UNIFORM,
    )
)
