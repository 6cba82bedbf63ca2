"""What the stages of one comparison hand to one another."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ckv_core.config import CompareRequest
from ckv_core.metrics.timing import Stopwatch
from ckv_core.modeling.loaded import LoadedModel
from ckv_core.records import PromptInfo
from ckv_core.variants import VariantSpec


@dataclass(slots=True)
class Run:
    """One comparison under way.

    Attributes:
        budgets: per variant, entries per KV head.
        select_ms: per variant, once selected.
        follow_up_prompts: one per follow-up question, with the same compressed prompt.
        own_masks: what the last variants keep whose positions were given, each
            [layers, kv_heads, compressed_tokens].
        prefix_tokens: first tokens of the prompt that were taken over from another's prefill.
    """

    request: CompareRequest
    loaded: LoadedModel
    should_stop: Callable[[], bool]
    specs: list[VariantSpec]
    prompt: PromptInfo
    budgets: list[int]
    stopwatch: Stopwatch
    select_ms: list[float] = field(default_factory=list)
    follow_up_prompts: list[PromptInfo] = field(default_factory=list)
    own_masks: list[NDArray[np.bool_]] = field(default_factory=list)
    prefix_tokens: int = 0

    @property
    def reference(self) -> int:
        """Row of the full cache: the variant `full`, else one more row that is not shown."""
        names = [spec.method.name for spec in self.specs]
        return names.index("full") if "full" in names else len(names)

    @property
    def window(self) -> int:
        """Last queries of the prompt that the prefill must have: the widest window."""
        return max((spec.protected["window"] for spec in self.specs), default=0)

    @property
    def rows(self) -> int:
        """Rows in the decode batch."""
        return max(len(self.specs), self.reference + 1)
