"""What a part is: its declaration and its code in one class, in one file. No torch is imported.

A method composes a scorer (what an entry is worth), a budget rule (how many entries each head
keeps), a selector (which ones) and, where it also evicts while generating, a policy; a store says
how what is kept is held.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import ClassVar, Literal, NamedTuple, Protocol

from ckv_core.base.lazy_torch import Generator, Tensor, torch
from ckv_core.methods.parameters import Parameter, ParameterValue, integer
from ckv_core.methods.parts.views import FurtherPasses, LayerView, Observer, PromptShape, Table

Parameters = Mapping[str, ParameterValue]

SINKS = integer("sinks", 0, (0, 4096)).means("First tokens that are always kept.")

RECENT = integer("recent", 0, (0, 4096)).means("Last tokens that are always kept.")
SEED = integer("seed", 0, (0, 999_999_999)).means(
    "Random, Compactor, Leverage: seed of the random numbers; each layer and KV head draws its own."
)


class PerEntry(NamedTuple):
    """Numbers of four bytes per entry of a layer, by what they are multiplied with."""

    kv_heads: int = 0
    query_heads: int = 0
    head_dim: int = 0
    keys: int = 0  # kv_heads * head_dim
    window: int = 0


class Part(ABC):
    """One of the things that a method is composed of; stateless, one object serves all runs."""

    # The word for it in SPECs, cache keys and lists: top_k of TopK, where none is given.
    name: ClassVar[str]
    # SPEC keys that it reads, with defaults, ranges and a sentence each.
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    reads: ClassVar[tuple[str, ...]] = ()  # names of keys of its scorer that it reads besides
    work: ClassVar[PerEntry] = PerEntry()  # what it needs while it works

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def unfit(self, scorer: Scorer) -> str:
        """Why it cannot follow this scorer, to come after the method's name; empty if it can."""
        taken = {parameter.name for parameter in scorer.parameters}
        missing = [f"{name!r}" for name in self.reads if name not in taken]
        return f"has a scorer that does not take {' and '.join(missing)}" if missing else ""

    def protects(self, parameters: Parameters) -> dict[str, slice]:
        """Positions of the prompt that are never evicted, by the parameter that says how many."""
        own = {
            parameter.name: int(parameters[parameter.name])
            for parameter in self.parameters
            if parameter.name in ("sinks", "window", "recent")
        }
        first = {"sinks": slice(0, own.pop("sinks"))} if "sinks" in own else {}
        return first | {name: slice(-count, None) for name, count in own.items() if count}

    def check(self, parameters: Parameters) -> str:
        """A sentence on values that do not go together; empty if all do."""
        return ""

    def refuses(self, budget: int, prompt_len: int, parameters: Parameters) -> str:
        """A sentence on why so long a prompt cannot have that budget; empty if it can."""
        return ""

    def observes(self, parameters: Parameters) -> tuple[Observer, ...]:
        """Return the statistics to be gathered while the prompt is read."""
        return ()

    def passes(self, parameters: Parameters) -> tuple[FurtherPasses, ...]:
        """Return the statistics to be gathered in further passes, once the prompt is read."""
        return ()

    def tables(self, scorer: Scorer | None, parameters: Parameters) -> tuple[Table, ...]:
        """Return the head tables that must be there before it chooses, after this scorer."""
        return ()

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        """Upper bound of what it needs while it works, beyond some numbers per entry of a layer."""
        keys, window = shape.kv_heads * shape.head_dim, int(parameters.get("window", 0))
        sizes = (shape.kv_heads, shape.query_heads, shape.head_dim, keys, window)
        numbers = sum(n * size for n, size in zip(self.work, sizes, strict=True))
        return 4 * shape.prompt_len * numbers


class Scorer(Part):
    """A scorer says what an entry is worth."""

    # Whether it looks at the queries of the prompt's end, with them at a question that stands
    # there; what else a method knows of the prompt is no different.
    query_aware: ClassVar[bool] = True
    # Whether the newest entries are worth most, the question with them.
    prefers_newest: ClassVar[bool] = False
    across_heads: ClassVar[bool] = True  # whether scores of different heads can be compared
    # Whether its scores are weights to which CriticalKV's product with the value norm can be
    # applied; of a negative score a larger norm would make less.
    non_negative: ClassVar[bool] = False
    # Whether it looks at positions alone, so that all heads share one order.
    by_position: ClassVar[bool] = False
    # Whether it turns keys back, and so has to know the place of each: of the whole prompt alone.
    turns_keys: ClassVar[bool] = False
    needs_window: ClassVar[bool] = False  # whether it asks for the observation window's attention
    needs_norms: ClassVar[bool] = False  # whether it asks for value norms
    norm_order: ClassVar[int] = 1  # which ones, 1 for L1 and 2 for L2

    def queries(self, parameters: Parameters) -> int:
        """Last queries of the prompt that it asks for."""
        asks = any(parameter.name == "window" for parameter in self.parameters)
        return int(parameters["window"]) if asks else 0

    def norms(self, parameters: Parameters) -> tuple[int, ...]:
        """Orders of the value norms that it asks for."""
        return (self.norm_order,) if self.needs_norms else ()

    def key(self, parameters: Parameters) -> tuple[ParameterValue, ...]:
        """Equal for equal scores of one prompt."""
        return (self.name, *(parameters[parameter.name] for parameter in self.parameters))

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        """Return the scores that rank entries and divide budgets: higher is kept first.

        A scorer has this or `evidence`; the other follows. `budget` of the parameters is in
        tokens; who reads it has it in its `key`.

        Returns:
            [kv_heads, entries] float32; columns after the last that may be evicted may be missing.
        """
        smoothed = self.smooth(self.evidence(view, parameters), parameters)
        return self.group(smoothed, view.kv_heads, parameters)

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        """Return the scores per query head before any smoothing, [query_heads, entries] float32."""
        group_size = view.query_heads // view.kv_heads
        return self.scores(view, parameters).repeat_interleave(group_size, dim=0)

    def smooth(self, evidence: Tensor, parameters: Parameters) -> Tensor:
        """Smooth along the prompt; shapes as they are."""
        return evidence

    def group(self, evidence: Tensor, kv_heads: int, parameters: Parameters) -> Tensor:
        """Combine the query heads that share a KV head, [kv_heads, entries]."""
        return evidence.view(kv_heads, -1, evidence.shape[-1]).mean(1)


class Candidates(Protocol):
    """The entries of one prompt that one variant may evict, ordered by score."""

    scorer: Scorer  # of the variant
    parameters: Parameters  # of the variant, by SPEC key; `budget` is in tokens
    layers: int  # evictable layers
    kv_heads: int  # KV heads of each
    entries: int  # of each head that may be evicted
    columns: slice | Tensor  # their positions, in order
    spare: int  # of them, what a head keeps on average
    protected: int  # entries of each head that are always kept

    def scores(self, place: int) -> Tensor:
        """The scorer's scores in one layer, [kv_heads, entries] float32."""

    def first(self) -> Tensor:
        """By the scorer's scores, [layers, kv_heads, entries] int32."""

    def joint(self) -> Tensor:
        """By the scores, the heads of a layer together: [layers, kv_heads * entries] int32.

        One head's entries lie after the other's.
        """

    def by(self, key: Hashable, score: Callable[[LayerView], Tensor]) -> Tensor:
        """By another score of all entries, [layers, kv_heads, entries] int32; kept under `key`."""

    def view(self, place: int) -> LayerView:
        """The evictable layer in that place."""

    def head_table(self, table: Table) -> Tensor:
        """A table's numbers for the evictable layers, [numbers, layers, kv_heads] float64."""


class Counts(Protocol):
    """How many entries there are to choose from; what `Candidates` has, known without a prompt."""

    layers: int
    kv_heads: int
    entries: int
    protected: int


class BudgetRule(Part):
    """A budget rule says how many entries each head keeps."""

    compares_heads: ClassVar[bool] = False  # whether it asks for the joint order of a layer's heads
    # What must be known before one layer's budgets are: nothing of the prompt, this layer, or all
    # layers.
    looks_at: ClassVar[Literal["nothing", "layer", "all layers"]] = "nothing"
    ranks_heads: ClassVar[bool] = False  # whether heads compete by their scores
    equal: ClassVar[bool] = False  # whether all heads of all layers get as many
    # Whether the budget is the most that may be kept, and what is kept an outcome.
    at_most: ClassVar[bool] = False

    def unfit(self, scorer: Scorer) -> str:
        """Heads that compete need scores that can be compared; else as of all parts."""
        if self.ranks_heads and not scorer.across_heads:
            return "has scores that cannot be compared between heads"
        return super().unfit(scorer)

    def layer_budgets(
        self, counts: Counts, spare: int, parameters: Parameters
    ) -> Sequence[int] | None:
        """The budget of each head by layer, [layers], where the rule looks at no prompt.

        None where heads differ, or where the prompt or a table decides.
        """
        return [spare] * counts.layers if self.equal else None

    def holds(self, budget: int, prompt_len: int, parameters: Parameters) -> int:
        """Entries of a head that are held on average, where a step reads only its budget."""
        return budget

    def notes(self, candidates: Candidates, parameters: Parameters) -> tuple[str, ...]:
        """Sentences for the receipt on how the budgets came about."""
        return ()

    @abstractmethod
    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        """Entries beyond those that are always kept.

        Args:
            candidates: what may be kept.
            spare: mean entries per head.
            parameters: by SPEC key.

        Returns:
            [layers, kv_heads] int64 on the CPU, summing to layers * kv_heads * spare; to no more
            with `at_most`.
        """


@dataclass(frozen=True, slots=True)
class Kept:
    """The entries that a selector keeps in some layers."""

    # [layers, kv_heads, entries] bool, of the candidates; a head has its budget of True.
    mask: Tensor
    # What it chose besides, [layers, kv_heads] by its name in `metrics.ANALYSIS_ARRAYS`.
    arrays: Mapping[str, Tensor] = field(default_factory=dict)


class Selector(Part):
    """A selector says which entries a head keeps."""

    label: ClassVar[str] = ""  # what a reader sees before the method's name; empty for none
    reading: ClassVar[str] = ""  # and in brackets after it
    # Endings of a SPEC under which a list of variants offers it.
    offers: ClassVar[tuple[str, ...]] = ("",)
    needs_norms: ClassVar[bool] = False  # whether it asks for value norms
    # Whether it asks for the window's attention to itself too.
    needs_full_window: ClassVar[bool] = False
    # Whether it looks at single entries, so that whole pages cannot stand in their place.
    needs_entries: ClassVar[bool] = False
    # Whether it chooses in one layer at a time; else in as many as fit.
    one_layer: ClassVar[bool] = False
    tries: ClassVar[int] = 1  # kept sets that it compares at a time

    def reading_of(self, parameters: Mapping[str, object]) -> str:
        """Return which of the selector's readings the parameters choose; empty for the only one."""
        return self.reading

    def label_of(self, method: str, parameters: Mapping[str, object]) -> str:
        """Return the label of a method with this selector, as CriticalKV-SnapKV (paper)."""
        reading = self.reading_of(parameters)
        return (f"{self.label}-{method}" if self.label else method) + (reading and f" ({reading})")

    def orders(self, parameters: Parameters) -> tuple[tuple[ParameterValue, ...], ...]:
        """Keys of the orders that it asks for beside the first."""
        return ()

    @abstractmethod
    def keep(self, candidates: Candidates, layers: slice, head_budgets: Tensor) -> Kept:
        """Choose in some layers.

        Args:
            candidates: what may be kept.
            layers: places of the evictable layers to choose in.
            head_budgets: [layers, kv_heads] int64, of those layers, each from 0 to entries.
        """

    def stage_one(
        self, candidates: Candidates, place: int, head_budgets: Tensor, arrays: Mapping[str, Tensor]
    ) -> Tensor | None:
        """Mark what its first stage alone keeps in one layer, [kv_heads, entries] bool.

        Args:
            candidates: as for `keep`.
            place: of the evictable layer.
            head_budgets: [kv_heads] int64, of that layer.
            arrays: of `Kept`, all layers.

        Returns:
            None of a selector of one stage.
        """
        return None


def generator(*place: object) -> Generator:
    """One per seed, layer, head and the like, on the CPU, unlike any other's."""
    digest = blake2b(repr(place).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest))
