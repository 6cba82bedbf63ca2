"""A row whose policy evicts while it generates: runs the policy and remembers what left when."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ckv_core.cache.evicting import EvictingSlots
from ckv_core.cache.pieces import places
from ckv_core.cache.prompt_slots import PromptSlots
from ckv_core.cache.slots import SlotCache
from ckv_core.engine.generated_layer import Chooser
from ckv_core.errors import EngineError
from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.steps import StepPolicy, StepView
from ckv_core.records import HeldSeries


@dataclass(frozen=True, slots=True)
class Acting:
    """A policy and the variant that it acts for.

    Attributes:
        parameters: of the variant; `budget` is in tokens.
        carried: by layer, what the policy knows of the prompt's entries at first; empty for
            nothing.
        chooser: ranks entries for policies that ask.
    """

    policy: StepPolicy
    parameters: Parameters
    carried: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    chooser: Chooser | None = None

    def slots(self, kept: PromptSlots, mask: Tensor | None, layer: int) -> EvictingSlots:
        """One layer's entries at the end of the prompt."""
        queries = self.policy.queries(self.parameters)
        return EvictingSlots(kept, mask, self.carried.get(layer, {}), queries)


@dataclass(slots=True)
class PolicyRow:
    """One row, decoded as `rows.Rows` are.

    Attributes:
        places: its one place in the batch; empty once it has left.
        row: its place in the batch at first.
        layers: its slots; layers that nothing may evict from are not EvictingSlots.
        position: of the next token; also how many tokens it has read.
        prompt_len: of the compressed prompt.
        step: generated tokens that have been fed.
        held: entries and bytes in evictable layers, at the choice of each generated token.
        evicted: (step, layer, [kv_heads, entries] int64 positions, -1 where a head has fewer).
    """

    places: list[int]
    row: int
    layers: list[SlotCache | EvictingSlots]
    position: int
    prompt_len: int
    acting: Acting
    step: int = 0
    held: list[tuple[int, int]] = field(default_factory=list)
    evicted: list[tuple[int, int, Tensor]] = field(default_factory=list)

    @property
    def grown_bytes(self) -> int:
        """Bytes held for what is read and generated."""
        return sum(layer.grown_bytes for layer in self.layers)

    def commit(self, tokens: int, *, generated: bool) -> None:
        """Keep the last pass's new entries; after a generated token the policy acts.

        Raises:
            EngineError: several generated tokens at once, or an answer of the wrong shape.
        """
        if generated and tokens != 1:
            raise EngineError("A row that evicts while it generates takes one token at a time.")
        if generated and self.step == 0:
            self._count()
        self.position += tokens
        for layer in self.layers:
            layer.commit(tokens)
        if generated:
            self.step += 1
            if self.acting.policy.acts(self.step, self.acting.parameters):
                self._act()
            self._count()

    def keep(self, rows: list[int], places: list[int]) -> None:
        """Go on at this place, or let go of everything."""
        self.places = places
        if not rows:
            self.layers = []

    def _act(self) -> None:
        """Ask the policy in every layer, then wait for the device once, then evict."""
        answers = [
            (index, layer, keep)
            for index, layer in enumerate(self.layers)
            if isinstance(layer, EvictingSlots) and (keep := self._answer(index, layer)) is not None
        ]
        if not answers:
            return
        meeting = answers[0][2].device
        counts = torch.stack([keep.sum(1).to(meeting) for *_, keep in answers]).tolist()
        for (index, slots, keep), kept in zip(answers, counts, strict=True):
            gone = [held - own for held, own in zip(slots.lengths, kept, strict=True)]
            if any(gone):
                positions = slots.positions()
                leaving = places(~keep & (positions >= 0), max(gone))
                where = positions.gather(1, leaving.clamp(min=0))
                self.evicted.append((self.step, index, where.masked_fill_(leaving < 0, -1)))
                slots.evict(keep, kept)

    def _answer(self, index: int, slots: EvictingSlots) -> Tensor | None:
        """What to go on with in one layer, [kv_heads, entries] bool, False for padding."""
        policy, parameters = self.acting.policy, self.acting.parameters
        positions = slots.positions()
        first_generated = self.position - self.step
        view = StepView(
            step=self.step,
            layer=index,
            prompt_len=self.prompt_len,
            positions=positions,
            probabilities=slots.probabilities() if policy.needs_probabilities else None,
            first_generated=first_generated,
            choose=lambda count, since: self._choose(index, slots, since, count),
            carried=slots.carried(),
        )
        keep = policy.after_step(view, parameters)
        written = view.carried.values()
        answers = [*written, keep] if keep is not None else list(written)
        wrong = any(answer.shape != positions.shape for answer in answers)
        if wrong or (keep is not None and keep.dtype != torch.bool):
            raise EngineError(
                f"The policy {policy.name!r} gave an answer of the wrong shape: KV heads x entries "
                f"{list(positions.shape)} are expected. This is a fault of the method's code."
            )
        if view.carried:
            slots.write(view.carried)
        return None if keep is None else keep & (positions >= 0)

    def _choose(self, layer: int, slots: EvictingSlots, first: int, count: int) -> Tensor:
        """Among the entries from `first` on, as the variant does; all earlier ones stay."""
        if self.acting.chooser is None:
            raise EngineError(f"{self.acting.policy.name!r} ranks nothing here.")
        chosen = self.acting.chooser.keep(layer, slots.since(first), *slots.queries(), count)
        positions = slots.positions()
        keep = positions >= 0
        return keep.masked_scatter_(positions >= first, chosen)

    def series(self, tokens: int) -> HeldSeries | None:
        """The record of the steps to the choice of so many generated tokens; None without any."""
        if not self.held:
            return None
        rows = [torch.empty(0, 4, dtype=torch.int64)]
        for step, layer, positions in self.evicted:
            if step < tokens:
                own = positions.cpu()
                heads, at = (own >= 0).nonzero().unbind(1)
                first = heads.new_tensor([[step, layer]]).expand(len(heads), -1)
                rows.append(torch.cat([first, heads[:, None], own[heads, at][:, None]], 1))
        entries, sizes = zip(*self.held[:tokens], strict=True)
        data = torch.cat(rows).numpy().astype("<u4").tobytes()
        return HeldSeries(entries=entries, cache_bytes=sizes, evicted=data)

    def _count(self) -> None:
        counted = [layer for layer in self.layers if isinstance(layer, EvictingSlots)]
        entries = sum(layer.entries for layer in counted)
        self.held.append((entries, sum(layer.nbytes for layer in counted)))
