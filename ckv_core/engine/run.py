"""The state of one comparison, which its stages hand to one another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ckv_core.base.stopwatch import Stopwatch
from ckv_core.engine.further_passes import Planned
from ckv_core.engine.generation import SharedDecode
from ckv_core.engine.prefill import Needs
from ckv_core.methods.parts.views import Table
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.records import PromptInfo
from ckv_core.records.run_request import RunRequest
from ckv_core.records.variants import VariantSpec

GROUP_ROWS = 32  # that are decoded at a time, of a sweep or of several comparisons


@dataclass(slots=True)
class Run:
    """One comparison under way."""

    request: RunRequest
    loaded: LoadedModel
    should_stop: Callable[[], bool]
    specs: list[VariantSpec]
    prompt: PromptInfo
    budgets: list[int]  # per variant, entries per KV head
    stopwatch: Stopwatch
    select_ms: list[float] = field(default_factory=list)  # per variant, once selected
    # One per follow-up question, with the same compressed prompt.
    follow_up_prompts: list[PromptInfo] = field(default_factory=list)
    # What the last variants keep whose positions were given, each [layers, kv_heads,
    # compressed_tokens].
    own_masks: list[NDArray[np.bool_]] = field(default_factory=list)
    further_passes: Planned = ()  # over the compressed prompt, that the variants ask for
    # Head tables that the model lacks and that are made, each with a variant that asks for it.
    missing_tables: Mapping[Table, VariantSpec] = field(default_factory=dict)
    passages: tuple[range, ...] = ()  # positions of the compressed prompt that no method may evict
    shared: SharedDecode | None = None  # where rows wait to be decoded with those of other runs
    shows_kept: bool = True  # whether its kept sets leave the engine
    measures_floor: bool = True  # whether to measure how far rounding alone moves its figures
    prefix_tokens: int = 0  # first tokens of the prompt that were taken over from another's prefill
    # Bytes that were found to be held, as of RunFinished; shared by the parts of a sweep.
    memory: dict[str, int] = field(default_factory=dict)

    def alone(self, row: int) -> "Run":
        """The part that has one variant."""
        spec, scored = self.specs[row], len(self.specs) - len(self.own_masks)
        return replace(
            self,
            specs=[spec],
            budgets=[self.budgets[row]],
            own_masks=self.own_masks[row - scored : row - scored + 1] if row >= scored else [],
            further_passes=tuple(each for each in self.further_passes if each[0] in spec.passes),
            missing_tables={t: spec for t in self.missing_tables if t in spec.tables},
            select_ms=[],  # the clock is the whole run's
        )

    @property
    def reference(self) -> int:
        """Row of the full cache: the variant `full`, else one more row that is not shown."""
        names = [spec.method.name for spec in self.specs]
        return names.index("full") if "full" in names else len(names)

    @property
    def reading_in_blocks(self) -> list[int]:
        """Rows of variants with a prefill of their own; one that evicts nothing shares another."""
        tokens, pairs = self.prompt.compressed_tokens, zip(self.specs, self.budgets, strict=True)
        return [row for row, (spec, budget) in enumerate(pairs) if spec.block and budget < tokens]

    @property
    def needs(self) -> Needs:
        return Needs.of(self.specs)

    @property
    def rows(self) -> int:
        """Decoded together; the reference is among them where the run has one."""
        return max(len(self.specs), self.reference + 1 if self.request.reference else 0)
