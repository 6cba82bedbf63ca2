"""The rounding floor: control rows that keep everything, their attention summed otherwise.

Half precision rounds what every block hands on, so that the least change of an input grows from
layer to layer. The controls show how far: exact arithmetic would give them the full cache's
outputs. A copy of the full row would not do, for it sums in the same order and so rounds alike.
"""

import torch
from torch import Tensor

from ckv_core.engine.cache.slots import Keep, PromptSlots, SlotCache, compact
from ckv_core.engine.first_step import MeasuredStep, hidden_l1, kl_divergence
from ckv_core.engine.generation import check_finite
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.rows import Rows
from ckv_core.methods.attention import Part, join, partial
from ckv_core.records.records import RoundingFloor

# Where each control parts the prompt. What half precision rounds differs from order to order,
# so it is tried twice; float32 rounds so little that one control tells enough.
CUTS: tuple[float, ...] = (1 / 2, 1 / 3)


class _PartedSlots(SlotCache):
    """Slots of one row that keeps everything, attended to in two parts joined as tails are."""

    def __init__(self, prompt: PromptSlots, capacity: int, window: int | None, cut: float) -> None:
        super().__init__(prompt, 1, capacity, window)
        self._cut = cut

    def _attend_prompt(
        self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None
    ) -> Part:
        at = int(self._cut * keys.shape[1])
        if mask is not None or not at:  # a query of a sliding layer may see nothing of a part
            return super()._attend_prompt(queries, keys, values, scaling, mask)
        one = partial(queries, keys[:, :at], values[:, :at], scaling)
        other = partial(queries, keys[:, at:], values[:, at:], scaling)
        return join(one, other), torch.logaddexp(one[1], other[1])


def control_rows(prefilled: Prefill, first_place: int, capacity: int) -> list[Rows]:
    """The controls at the end of the prompt; they share the prefill's own tensors."""
    windows, cuts = prefilled.loaded.sliding_windows, CUTS
    if prefilled.loaded.model.dtype == torch.float32:
        cuts = CUTS[:1]
    shared = [compact(each.keys, each.values, [Keep(None)]) for each in prefilled.layers]
    return [
        Rows(
            [first_place + number],
            [
                _PartedSlots(prompt, capacity, window, cut)
                for prompt, window in zip(shared, windows, strict=True)
            ],
            prefilled.prompt_len,
        )
        for number, cut in enumerate(cuts)
    ]


def rounding_floor(step: MeasuredStep, reference: int, first: int) -> RoundingFloor:
    """How far the controls are from the full cache, the larger of them in each figure.

    The controls are the rows from `first` on; `reference` is the full cache's.
    """
    moved = [hidden_l1(hidden[first:], hidden[reference]).amax() for hidden in step.hidden]
    layers = [each.to(step.logits.device) for each in moved]  # of a model on several devices
    kl = kl_divergence(step.logits[first:], step.logits[reference]).tolist()
    check_finite(kl)
    return RoundingFloor(layer_hidden_l1=torch.stack(layers).cpu().numpy(), kl=max(kl))
