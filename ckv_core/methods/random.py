"""Random: entries by lot; the floor that any method has to beat.

kvpress makes its generator anew in each layer: with a seed, all layers evict the same positions.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from ckv_core.knobs import Knob, integer
from ckv_core.lazy_torch import torch
from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.base import Parameters, Scorer
from ckv_core.methods.parts.uniform import UNIFORM
from ckv_core.methods.parts.views import LayerView

if TYPE_CHECKING:
    from torch import Tensor

SEED = Knob(
    name="seed",
    help="Of the random numbers; each layer and KV head has its own ones.",
    default=0,
    parse=integer("seed", 0, 999_999_999),
)


class Noise(Scorer):
    """Uniform numbers, on the CPU whatever the device: the same everywhere."""

    name = "noise"
    knobs = (SEED,)
    query_aware = False
    non_negative = True

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        kv_heads, entries = view.keys.shape[:2]
        generators = [_generator(parameters["seed"], view.layer, head) for head in range(kv_heads)]
        drawn = [torch.rand(entries, generator=each) for each in generators]
        return torch.stack(drawn).to(view.keys.device)


def _generator(*place: object) -> torch.Generator:
    """One per seed, layer and head, unlike any other's."""
    digest = blake2b(repr(place).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest))


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
