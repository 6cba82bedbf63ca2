"""Rows of one prompt: what they hold after selection, and the same rows while they are decoded."""

from collections.abc import Sequence
from dataclasses import dataclass

from ckv_core.engine.cache.prompt_slots import Keep, PromptSlots, compact
from ckv_core.engine.cache.slots import SlotCache
from ckv_core.engine.policy_row import Acting, PolicyRow
from ckv_core.engine.prefill import Prefill


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What one row keeps of each layer, and what goes on evicting from it."""

    keeps: Sequence[Keep]
    acting: Acting | None = None


@dataclass(slots=True)
class Rows:
    """Rows of one prompt that are decoded in step and evict nothing meanwhile."""

    places: list[int]  # of each row in the batch; empty once all have left
    layers: list[SlotCache]  # their slots
    position: int  # of the next token; also how many tokens each row has read

    @property
    def grown_bytes(self) -> int:
        """Bytes held for what is read and generated."""
        return sum(layer.grown_bytes for layer in self.layers)

    def commit(self, tokens: int, *, generated: bool) -> None:  # noqa: ARG002 - of PolicyRow
        self.position += tokens
        for layer in self.layers:
            layer.commit(tokens)

    def keep(self, rows: list[int], places: list[int]) -> None:
        """Go on with these rows only, which now have these places in the batch."""
        self.places = places
        for layer in self.layers:
            layer.keep_rows(rows)


@dataclass(frozen=True, slots=True)
class PromptRows:
    """All rows of one prompt as selection left them; every decoding of them starts here anew."""

    prompt_len: int  # tokens of the compressed prompt
    plans: Sequence[RowPlan]  # of all rows
    windows: Sequence[int | None]  # sliding window of each layer, or None
    steady: Sequence[int]  # rows without a policy; `layers` holds them together
    layers: list[PromptSlots]
    alone: dict[int, list[PromptSlots]]  # the other rows, by layer

    @property
    def own_bytes(self) -> int:
        """Bytes held beside the prefill's own tensors."""
        return sum(layer.own_bytes for layers in self._groups for layer in layers)

    @property
    def _groups(self) -> list[list[PromptSlots]]:
        return [self.layers, *self.alone.values()]

    def row_bytes(self, layer: int, row: int) -> int:
        """Bytes of the tensors that hold one row's prompt entries in one layer."""
        if row in self.alone:
            return self.alone[row][layer].row_bytes(0)
        return self.layers[layer].row_bytes(self.steady.index(row))

    def start(self, capacity: int, first_place: int = 0) -> list[Rows | PolicyRow]:
        """The rows at the end of the prompt, with room for `capacity` further tokens."""
        places = [first_place + row for row in self.steady]
        steady = [
            SlotCache(kept, len(places), capacity, window)
            for kept, window in zip(self.layers, self.windows, strict=True)
        ]
        parts: list[Rows | PolicyRow] = [Rows(places, steady, self.prompt_len)] if places else []
        for row, layers in self.alone.items():
            plan = self.plans[row]
            if plan.acting is not None:
                own = [
                    plan.acting.slots(kept, plan.keeps[index].mask, index)
                    if window is None
                    else SlotCache(kept, 1, capacity, window)
                    for index, (kept, window) in enumerate(zip(layers, self.windows, strict=True))
                ]
                place, length = first_place + row, self.prompt_len
                parts.append(PolicyRow([place], place, own, length, length, plan.acting))
        return parts


def prompt_rows(prefilled: Prefill, plans: Sequence[RowPlan]) -> PromptRows:
    steady = [row for row, plan in enumerate(plans) if plan.acting is None]
    alone = [row for row, plan in enumerate(plans) if plan.acting is not None]

    windows = prefilled.loaded.sliding_windows
    whole = Keep(None)  # sliding layers: nothing is evicted, and no store is asked

    def compacted(rows: Sequence[int]) -> list[PromptSlots]:
        slots = []
        for index, (states, window) in enumerate(zip(prefilled.layers, windows, strict=True)):
            keeps = [plans[row].keeps[index] if window is None else whole for row in rows]
            slots.append(compact(states.keys, states.values, keeps))
        return slots

    return PromptRows(
        prompt_len=prefilled.prompt_len,
        plans=plans,
        windows=windows,
        steady=steady,
        layers=compacted(steady),
        alone={row: compacted([row]) for row in alone},
    )
