"""Random: random entries, the baseline that any method has to beat.

kvpress makes a new generator in each layer, so that all layers evict the same positions
(`lots=alike`).
"""

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import choice
from ckv_core.methods.parts.base import SEED, Parameters, Scorer, generator
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.views import LayerView

LOTS = choice("lots", ("own", "alike"), kvpress="alike").means(
    "Random: each layer draws numbers of its own, or all layers the same (kvpress with a seed)."
)


class Noise(Scorer):
    """Uniform numbers, on the CPU whatever the device: the same everywhere."""

    parameters = (SEED, LOTS)
    query_aware = False
    non_negative = True

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        kv_heads, entries = view.keys.shape[:2]
        if view.positions is not None:  # an entry keeps its number
            entries = view.prompt_len
        if parameters["lots"] == "alike":
            alike = torch.Generator().manual_seed(int(parameters["seed"]))
            drawn = torch.rand(kv_heads, entries, generator=alike)
        else:
            heads = [generator(parameters["seed"], view.layer, head) for head in range(kv_heads)]
            drawn = torch.stack([torch.rand(entries, generator=each) for each in heads])
        drawn = drawn.to(view.keys.device)
        return drawn if view.positions is None else drawn.gather(1, view.positions)


register(
    name="random",
    label="Random",
    summary="Keeps random entries: the baseline that a method has to beat.",
    source="a control",
    scorer=Noise(),
    press=Press("RandomPress", {"seed": "seed"}),
)
