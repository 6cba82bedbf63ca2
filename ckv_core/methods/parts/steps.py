"""Policies, which evict while a row generates; and compaction, which follows any window scorer.

No torch is imported.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor
from ckv_core.methods.parameters import integer
from ckv_core.methods.parts.base import Parameters, Part, Scorer
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
    # included; rows sum to 1, less a sink's share; padding has 0. None where no policy asks.
    probabilities: Tensor | None
    first_generated: int  # position of the first generated token; before it lie prompt and question
    # What the variant's own scorer and selector keep, so many in each head, of the entries from a
    # position on: [kv_heads, entries] bool, with all earlier entries; the policy's `queries` are
    # the window.
    choose: Callable[[int, int], Tensor]
    # What the policy wrote about each entry, [kv_heads, entries] by name; it is kept in step with
    # the entries: evicted with them, 0 for a new one.
    carried: dict[str, Tensor] = field(default_factory=dict)


def most_each_step(kept: int, generated: int, parameters: Parameters) -> int:
    """`StepPolicy.most` where every new entry above the budget pushes one out."""
    return min(kept + generated, max(kept, int(parameters["budget"]) + 1))


class StepPolicy(Part):
    """When and what a row evicts while it generates."""

    needs_equal: ClassVar[bool] = False  # whether all heads must begin with as many entries
    needs_probabilities: ClassVar[bool] = False  # whether `StepView.probabilities` must be there
    alike: ClassVar[bool] = False  # whether all heads of a layer hold the same entries

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
        """Return what is carried of the prompt's entries at first, [kv_heads, entries] by name."""
        return {}

    def most(self, kept: int, generated: int, parameters: Parameters) -> int:
        """The most entries that a head holds at a time, of so many kept and generated ones.

        `budget` of the parameters is in tokens; without a claim of the policy, all of them.
        """
        return kept + generated

    @abstractmethod
    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        """Mark the entries to go on with, [kv_heads, entries] bool; None keeps everything.

        What it says of padding is passed over. `budget` of the parameters is in tokens.
        """


EVERY = integer("every", 256, (2, 4096)).means(
    "Evicts generated entries after every so many tokens, by the method's own score and selector; "
    "by default all stay."
)
TO = integer("to", 64, (1, 4096)).means(
    "With every: generated entries that a KV head keeps. Those of the last tokens, as many as the "
    "window has, always stay."
)


class Compaction(StepPolicy):
    """Compaction cuts down what is generated now and then (CriticalKV, appendix K).

    Every head keeps the same number; the prompt's entries stay.
    """

    parameters = (EVERY, TO)

    def unfit(self, scorer: Scorer) -> str:
        return "" if scorer.needs_window else "does not score by an observation window"

    def check(self, parameters: Parameters) -> str:
        window, to, every = (int(parameters[key]) for key in ("window", "to", "every"))
        if window < to < every:
            return ""
        return (
            f"window ({window}) must be below to ({to}), and to below every ({every}); lower "
            "window or to, or raise every."
        )

    def queries(self, parameters: Parameters) -> int:
        return int(parameters["window"])

    def acts(self, step: int, parameters: Parameters) -> bool:
        return step % int(parameters["every"]) == 0

    def most(self, kept: int, generated: int, parameters: Parameters) -> int:
        every, to = int(parameters["every"]), int(parameters["to"])
        return kept + min(generated, max(every, to + min(every, generated - every)))

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        return view.choose(int(parameters["to"]), view.first_generated)


# What a SPEC may ask for, by the key of its first parameter.
POLICIES: dict[str, StepPolicy] = {EVERY.name: Compaction()}
