"""What a policy is: it evicts while a row generates. No torch is imported."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor
from ckv_core.methods.parts.base import Parameters, Part
from ckv_core.methods.parts.views import LayerView


@dataclass(slots=True)
class StepView:
    """One row's entries in one layer after a decoding step, for a policy to choose from.

    Heads that hold fewer entries than the longest are padded at the end: position -1.
    """

    step: int  # generated tokens that have been fed, 1 for the first
    layer: int  # index of the decoder layer
    prompt_len: int  # positions below it are of the prompt
    positions: Tensor  # [kv_heads, entries] int64, prompt and generated ones, oldest first
    # [query_heads, entries] float32, the newest query's attention over them, its own entry
    # included; rows sum to 1, padding has 0. None where the policy does not ask.
    probabilities: Tensor | None
    first_generated: int  # position of the first generated token; before it lie prompt and question
    # What the variant's own scorer and selector keep, so many in each head, of the entries from a
    # position on: [kv_heads, entries] bool, with all earlier entries; the policy's `queries` are
    # the window.
    choose: Callable[[int, int], Tensor]
    # What the policy wrote about each entry, [kv_heads, entries] by name; it is kept in step with
    # the entries: evicted with them, 0 for a new one.
    carried: dict[str, Tensor] = field(default_factory=dict)


class StepPolicy(Part):
    """When and what a row evicts while it generates."""

    needs_equal: ClassVar[bool] = False  # whether all heads must begin with as many entries
    needs_probabilities: ClassVar[bool] = False  # whether `StepView.probabilities` must be there

    def wanted(self, parameters: Parameters) -> bool:
        """Whether a variant has it; without it, what is generated stays."""
        return True

    def moves(self, parameters: Parameters) -> bool:
        """Whether RoPE puts keys where they lie among what is held, as many in every head."""
        return False

    def queries(self, parameters: Parameters) -> int:
        """How many of the newest queries it needs."""
        return 0

    def acts(self, step: int, parameters: Parameters) -> bool:
        """Whether it looks at anything after this step."""
        return True

    def begins_with(self, view: LayerView, parameters: Parameters) -> Mapping[str, Tensor]:
        """What is carried of the prompt's entries at first, [kv_heads, entries] by name."""
        return {}

    @abstractmethod
    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        """What to go on with, [kv_heads, entries] bool; None keeps everything.

        What it says of padding is passed over. `budget` of the parameters is in tokens.
        """
