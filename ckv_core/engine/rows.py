"""Rows of one prompt: what they hold after selection, and the same rows while they are decoded.

A row whose policy evicts while it generates is decoded by itself, and remembers what left when.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import cast

import torch
from torch import Tensor

from ckv_core.engine.cache.evicting import EvictingSlots, places
from ckv_core.engine.cache.slots import (
    Keep,
    PromptSlots,
    SlotCache,
    StateCache,
    compact,
    held_slots,
)
from ckv_core.engine.candidates import Chooser
from ckv_core.engine.prefill import LayerStates, Prefill
from ckv_core.errors import EngineError
from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.steps import StepPolicy, StepView
from ckv_core.models.rope import LayerRotary
from ckv_core.records.records import HeldSeries


@dataclass(frozen=True, slots=True)
class Acting:
    """A policy and the variant that it acts for."""

    policy: StepPolicy
    parameters: Parameters  # of the variant; `budget` is in tokens
    # By layer, what the policy knows of the prompt's entries at first; empty for nothing.
    carried: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    chooser: Chooser | None = None  # ranks entries for policies that ask
    # By layer, what puts keys at their places among what is held; empty: those in the text stay.
    rotaries: Mapping[int, LayerRotary] = field(default_factory=dict)
    # Positions of the prompt that every head has kept and none may evict.
    passages: tuple[range, ...] = ()

    def slots(self, kept: PromptSlots, mask: Tensor | None, layer: int) -> EvictingSlots:
        """One layer's entries at the end of the prompt."""
        queries = self.policy.queries(self.parameters)
        rotary = self.rotaries.get(layer)
        return EvictingSlots(kept, mask, self.carried.get(layer, {}), queries, rotary)

    def free(self, positions: Tensor) -> Tensor | None:
        """Entries that the policy may see, by their positions; as many in every head.

        None for all: picking them by a mask would wait for the device.
        """
        if not self.passages:
            return None
        free = torch.ones_like(positions, dtype=torch.bool)
        for place in self.passages:
            free &= (positions < place.start) | (positions >= place.stop)
        return free

    @property
    def own_parameters(self) -> Parameters:
        """Returns the policy's: what it may not see is not in its budget."""
        if not self.passages:
            return self.parameters
        held = sum(map(len, self.passages))
        return {**self.parameters, "budget": int(self.parameters["budget"]) - held}


@dataclass(slots=True)
class Rows:
    """Rows of one prompt that are decoded in step and evict nothing meanwhile."""

    places: list[int]  # of each row in the batch; empty once all have left
    # Their slots; those of a PolicyRow are EvictingSlots in layers that it may evict from.
    layers: Sequence[SlotCache | EvictingSlots | StateCache]
    position: int  # of the next token; also how many tokens each row has read

    @property
    def grown_bytes(self) -> int:
        """Bytes held for what is read and generated."""
        return sum(layer.grown_bytes for layer in self.layers)

    def commit(self, tokens: int, *, generated: bool) -> None:  # noqa: ARG002 - of PolicyRow
        """Keep the last pass's new entries."""
        self.position += tokens
        for layer in self.layers:
            layer.commit(tokens)

    def keep(self, rows: list[int], places: list[int]) -> None:
        """Go on with these rows only, which now have these places in the batch."""
        self.places = places
        for layer in cast("list[SlotCache | StateCache]", self.layers):
            layer.keep_rows(rows)


@dataclass(slots=True)
class PolicyRow(Rows):
    """One row whose policy evicts; `places` has its one place."""

    row: int  # its place in the batch at first
    prompt_len: int  # of the compressed prompt
    acting: Acting
    step: int = 0  # generated tokens that have been fed
    # Entries and bytes in evictable layers, at the choice of each generated token.
    held: list[tuple[int, int]] = field(default_factory=list)
    # (step, layer, [kv_heads, entries] int64 positions, -1 where a head has fewer).
    evicted: list[tuple[int, int, Tensor]] = field(default_factory=list)

    def commit(self, tokens: int, *, generated: bool) -> None:
        """Keep the last pass's new entries; after a generated token, always one, act."""
        if generated and self.step == 0:
            self._count()
        Rows.commit(self, tokens, generated=generated)
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
        counted = [slots.counted(keep) for _, slots, keep in answers]
        counts = iter(torch.cat([each.to(meeting) for each in counted]).tolist())
        for (index, slots, keep), own_counts in zip(answers, counted, strict=True):
            counts_here = list(islice(counts, len(own_counts)))
            kept = slots.by_head(counts_here)
            gone = [held - own for held, own in zip(slots.lengths, kept, strict=True)]
            if any(gone):
                positions = slots.positions()
                leaving = places(~keep & (positions >= 0), max(gone))
                where = positions.gather(1, leaving.clamp(min=0))
                self.evicted.append((self.step, index, where.masked_fill_(leaving < 0, -1)))
                slots.evict(keep, counts_here)

    def _answer(self, index: int, slots: EvictingSlots) -> Tensor | None:
        """Ask what stays in one layer, [kv_heads, entries] bool, False for padding."""
        policy, everything = self.acting.policy, slots.positions()
        free = self.acting.free(everything)

        def shown(states: Tensor) -> Tensor:
            if free is None:
                return states
            mask = free.repeat_interleave(len(states) // len(free), 0)
            return states[mask].view(len(states), -1)

        def whole(answer: Tensor, fill: int) -> Tensor:
            if free is None:
                return answer
            return torch.full_like(free, fill, dtype=answer.dtype).masked_scatter(free, answer)

        positions = shown(everything)
        first_generated = self.position - self.step
        view = StepView(
            step=self.step,
            layer=index,
            prompt_len=self.prompt_len,
            positions=positions,
            probabilities=shown(slots.probabilities()) if policy.needs_probabilities else None,
            first_generated=first_generated,
            choose=lambda count, since: shown(self._choose(index, slots, since, count)),
            carried={name: shown(each) for name, each in slots.carried().items()},
        )
        keep = policy.after_step(view, self.acting.own_parameters)
        written = view.carried.values()
        answers = [*written, keep] if keep is not None else list(written)
        wrong = any(answer.shape != positions.shape for answer in answers)
        if wrong or (keep is not None and keep.dtype != torch.bool):
            raise EngineError(
                f"The policy {policy.name!r} gave an answer of the wrong shape: KV heads x entries "
                f"{list(positions.shape)} are expected. This is a fault of the method's code."
            )
        if view.carried:
            slots.write({name: whole(each, 0) for name, each in view.carried.items()})
        return None if keep is None else whole(keep & (positions >= 0), 1)

    def _choose(self, layer: int, slots: EvictingSlots, first: int, count: int) -> Tensor:
        """Among the entries from `first` on, as the variant does; all earlier ones stay."""
        positions, states = slots.positions(), slots.since(first)
        late, free = positions >= first, self.acting.free(positions)
        if free is not None:
            shown = free[late].view(len(positions), -1)
            keys, values = (each[shown].view(len(each), -1, each.shape[2]) for each in states)
            late, states = late & free, (keys, values)
        chooser = cast(Chooser, self.acting.chooser)
        chosen = chooser.keep(layer, states, *slots.queries(), count, self.position)
        return (positions >= 0).masked_scatter_(late, chosen)

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


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A row's choice in each layer, and the policy that evicts from it during generation."""

    keeps: Sequence[Keep]
    acting: Acting | None = None
    own: Prefill | None = None  # of a row that has read the prompt by itself, and holds its budget

    def slots(self, prompt_len: int, windows: Sequence[int | None]) -> list[PromptSlots]:
        """The entries of a row's own prefill by layer; in its store, but for sliding layers."""
        found = []
        layers = cast(Prefill, self.own).layers
        for states, window, keep in zip(layers, windows, self.keeps, strict=True):
            if window is not None:
                found.append(whole_slots(states, 1))
                continue
            like = states.keys[:, :0].clone(), states.values[:, :0].clone()
            segment = keep.store.encode(states.keys, states.values, keep.parameters, keep.weights)
            found.append(held_slots(prompt_len, like, [(segment, range(len(states.keys)))]))
        return found


def whole_slots(states: LayerStates, rows: int) -> PromptSlots:
    """One layer of rows that all keep everything, or of a linear layer what it carries."""
    slots = compact(states.keys, states.values, [Keep(None)] * rows)
    return replace(slots, state=states.state)


def begun(
    kept: PromptSlots, rows: int, capacity: int, window: int | None
) -> SlotCache | StateCache:
    """One layer of rows that evict nothing, at the prompt's end; arguments as of `SlotCache`."""
    if kept.state is not None:
        return StateCache(kept.state, rows)
    return SlotCache(kept, rows, capacity, window)


@dataclass(frozen=True, slots=True)
class PromptRows:
    """All rows of one prompt as selection left them; every decoding of them starts here."""

    prompt_len: int  # tokens of the compressed prompt
    plans: Sequence[RowPlan]  # of all rows
    windows: Sequence[int | None]  # sliding window of each layer, or None
    # Rows of the shared prefill that evict nothing while they generate; `layers` holds them
    # together.
    steady: Sequence[int]
    layers: list[PromptSlots]
    alone: dict[int, list[PromptSlots]]  # the other rows, by layer
    logits: Tensor | None = None  # [rows, vocabulary] after the prompt; None of a file's row

    @property
    def own_bytes(self) -> int:
        """Bytes held beside the prefill's own tensors."""
        groups = [self.layers, *self.alone.values()]
        return sum(layer.own_bytes for layers in groups for layer in layers)

    @property
    def state_bytes(self) -> int:
        """Bytes that the linear layers carry for one row; 0 where there are none."""
        layers = self.layers or next(iter(self.alone.values()))
        return sum(layer.state.nbytes for layer in layers if layer.state)

    def slots(self, layer: int, row: int) -> PromptSlots:
        """The slots of one row's prompt entries in one layer, shared with other rows or its own."""
        return self.alone[row][layer] if row in self.alone else self.layers[layer]

    def row_bytes(self, layer: int, row: int, *, read: bool = False) -> int:
        """Bytes that hold one row's prompt entries in one layer; or of those a step reads."""
        place = 0 if row in self.alone else self.steady.index(row)
        return self.slots(layer, row).row_bytes(place, read=read)

    def let_go(self) -> None:
        """Leave the entries to the decoding that has begun; no other can begin."""
        self.layers.clear()
        self.alone.clear()

    def start(self, capacity: int, first_place: int = 0) -> list[Rows]:
        """The rows at the end of the prompt, with room for `capacity` further tokens."""
        places = [first_place + row for row in self.steady]
        steady = [
            begun(kept, len(places), capacity, window)
            for kept, window in zip(self.layers, self.windows, strict=bool(places))
        ]
        parts = [Rows(places, steady, self.prompt_len)] if places else []
        for row, layers in self.alone.items():
            keeps, acting = self.plans[row].keeps, self.plans[row].acting
            own = [
                acting.slots(kept, keeps[index].mask, index)
                if acting is not None and window is None
                else begun(kept, 1, capacity, window)
                for index, (kept, window) in enumerate(zip(layers, self.windows, strict=True))
            ]
            place, length = first_place + row, self.prompt_len
            if acting is None:
                parts.append(Rows([place], own, length))
            else:
                parts.append(PolicyRow([place], own, length, place, length, acting))
        return parts


def prompt_rows(prefilled: Prefill, plans: Sequence[RowPlan]) -> PromptRows:
    """Copy what each row keeps of a prompt: of sliding layers everything, in no store."""
    steady = [row for row, plan in enumerate(plans) if plan.acting is None and plan.own is None]
    windows = prefilled.loaded.sliding_windows

    def compacted(rows: Sequence[int]) -> list[PromptSlots]:
        slots = []
        for index, (states, window) in enumerate(zip(prefilled.layers, windows, strict=True)):
            if window is not None:
                slots.append(whole_slots(states, len(rows)))
                continue
            keeps = [plans[row].keeps[index] for row in rows]
            slots.append(compact(states.keys, states.values, keeps))
        return slots

    length, apart = prefilled.prompt_len, (row for row in range(len(plans)) if row not in steady)
    logits = [(prefilled if plan.own is None else plan.own).logits for plan in plans]
    shared = compacted(steady) if steady else []
    alone = {
        row: plans[row].slots(length, windows) if plans[row].own else compacted([row])
        for row in apart
    }
    # A plan outlives its prefill, whose entries a store may have encoded.
    plans = [replace(plan, own=None) for plan in plans]
    return PromptRows(length, plans, windows, steady, shared, alone, torch.stack(logits))
