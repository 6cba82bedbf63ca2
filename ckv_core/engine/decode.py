"""Batched decode: rows of one prompt or of several in one forward pass, each with its own cache."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

from ckv_core.engine.cache.evicting import EvictingSlots
from ckv_core.engine.cache.slots import SlotCache, StateCache
from ckv_core.engine.graphs import StepGraph
from ckv_core.engine.rows import PolicyRow, Rows
from ckv_core.errors import RunCancelledError
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.models.linear import LinearState, joined_rows
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.rope import length_dependent, read_as_whole

READ_CHUNK = 256  # tokens per pass over a question; every row pays for its own


class DecodeContext:
    """Attention of a batch of rows over what each of them holds.

    Attributes:
        parts: rows that are decoded in step, of any prompts; those in the next pass.
        record_row: row whose queries to keep; None for none.
        recorded: per layer, that row's last queries, [query_heads, head_dim].
        gates: by layer, what gates the output of that row's heads, [query_heads, value_dim]; empty
            where no layer has a gate.
    """

    def __init__(
        self, loaded: LoadedModel, parts: Sequence[Rows], should_stop: Callable[[], bool]
    ) -> None:
        """Between them `parts` have all places of the batch, from 0 on."""
        self.parts = list(parts)
        self._should_stop = should_stop
        # Rows of each part by device, of the places below.
        self._rows: dict[torch.device, list[Tensor]] = {}
        self._placed: tuple[tuple[int, ...], ...] = ()
        self.record_row: int | None = None
        self.recorded: list[Tensor | None] = [None] * loaded.info.layers
        self.gates: dict[int, Tensor] = {}

    def check(self) -> None:
        """Raise RunCancelledError once the run is to stop."""
        if self._should_stop():
            raise RunCancelledError

    @property
    def places(self) -> list[int]:
        """Returns the places of the rows in the pass, one part after another."""
        return [place for part in self.parts for place in part.places]

    @contextmanager
    def only(self, parts: Sequence[Rows]) -> Iterator[list[int]]:
        """Have the rows of these parts alone in a pass; yields their places in order."""
        before, self.parts = self.parts, list(parts)
        try:
            yield sorted(self.places)
        finally:
            self.parts = before

    def commit(self, tokens: int, *, generated: bool) -> None:
        """Keep the last pass's new entries; after a generated token policies act."""
        for part in self.parts:
            part.commit(tokens, generated=generated)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order; the others cost nothing from now on."""
        new_place = {place: index for index, place in enumerate(rows)}
        for part in self.parts:
            moved = [
                (new_place[place], at) for at, place in enumerate(part.places) if place in new_place
            ]
            moved.sort()
            part.keep([at for _, at in moved], [place for place, _ in moved])
        self.parts = [part for part in self.parts if part.places]

    def tail(self, layer: int, row: int) -> tuple[Tensor, Tensor]:
        """Keys, values [kv_heads, entries, dim] after the prompt of a row without a policy."""
        part = next(each for each in self.parts if row in each.places)
        return cast(SlotCache, part.layers[layer]).tail(part.places.index(row))

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: Scaling
    ) -> Tensor:
        """Attention of the new tokens; see AttentionContext."""
        self.check()
        if self.record_row is not None:
            self.recorded[layer] = query[self.record_row, :, -1]
        if len(self.parts) == 1:
            slots = cast("SlotCache | EvictingSlots", self.parts[0].layers[layer])
            return slots.attend(query, key, value, scaling)
        # Rows of a pass lie in order of place; each part takes its own out and puts them back.
        out = query.new_empty(*query.shape[:3], value.shape[3])
        for part, at in zip(self.parts, self._rows_on(query.device), strict=True):
            slots = cast("SlotCache | EvictingSlots", part.layers[layer])
            out[at] = slots.attend(query[at], key[at], value[at], scaling)
        return out

    def state(self, layer: int) -> LinearState:
        """The state of the rows of this pass in a linear layer; see StateContext."""
        own = [cast(StateCache, part.layers[layer]).state for part in self.parts]
        if len(own) == 1:
            return own[0]
        return joined_rows(own, self._rows_on(own[0].conv.device))

    def take_state(self, layer: int, state: LinearState) -> None:
        """The next states of these rows; they count once they are committed."""
        for part, at in zip(self.parts, self._rows_on(state.conv.device), strict=True):
            cache = cast(StateCache, part.layers[layer])
            cache.next = state if len(self.parts) == 1 else state.rows(at)

    def _rows_on(self, device: torch.device) -> list[Tensor]:
        """Where each part's rows lie in the pass, copied to a device once, not in every layer."""
        now = tuple(tuple(part.places) for part in self.parts)
        if now != self._placed:
            self._placed, self._rows = now, {}
        if device not in self._rows:
            row_of = {place: row for row, place in enumerate(sorted(self.places))}
            lists = [[row_of[place] for place in places] for places in now]
            self._rows[device] = [torch.tensor(rows, device=device) for rows in lists]
        return self._rows[device]


class Decoder:
    """Feeds tokens to all rows at once and hands back the next-token logits."""

    def __init__(self, loaded: LoadedModel, context: DecodeContext) -> None:
        self.loaded = loaded
        self.context = context
        self._graph = StepGraph(loaded)

    def feed(self, token_ids: Tensor, *, commit: bool = True) -> Tensor:
        """Call `feed_all` for the logits after the last new token alone, [rows, vocabulary]."""
        return self.feed_all(token_ids, commit=commit)[:, -1]

    def feed_all(self, token_ids: Tensor, *, commit: bool = True) -> Tensor:
        """Logits after each of the next generated tokens of every row, [rows, new_tokens].

        A policy acts after each of them, so its row takes one at a time; so do all where the
        factors of RoPE depend on the length: each was generated with those of its own pass.
        Without `commit` a single token's entries are not kept. Gives float32, [.., vocabulary].
        """
        one_by_one = bool(length_dependent(self.loaded.model))

        def passes(some: Tensor) -> Tensor:
            acting = any(isinstance(part, PolicyRow) for part in self.context.parts)
            parts = torch.split(some, 1 if one_by_one or acting else some.shape[1], dim=1)
            logits = []
            for part in parts:
                found = self._replayed(part) if commit else None
                found = self._forward(part, part.shape[1]) if found is None else found
                logits.append(found.float())
                if commit:
                    self.context.commit(part.shape[1], generated=True)
            return logits[0] if len(logits) == 1 else torch.cat(logits, 1)

        return self._in_turn(self._groups(by_pace=token_ids.shape[1] > 1), token_ids, passes)

    def _groups(self, *, by_pace: bool) -> list[list[Rows]]:
        """Parts that can share a pass: by whether a policy acts, and by length where RoPE asks."""
        parts = self.context.parts
        apart = len({part.position for part in parts}) > 1 and length_dependent(self.loaded.model)
        groups: dict[tuple[bool, int], list[Rows]] = {}
        for part in parts:
            key = (by_pace and isinstance(part, PolicyRow), part.position if apart else 0)
            groups.setdefault(key, []).append(part)
        return list(groups.values())

    def _in_turn(
        self, groups: list[list[Rows]], token_ids: Tensor, work: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Let `work` take each group's tokens [rows, tokens]; returns the rows in order again."""
        if len(groups) == 1:
            return work(token_ids)
        row_of = {place: row for row, place in enumerate(sorted(self.context.places))}
        rows, outputs = [], []
        for parts in groups:
            with self.context.only(parts) as places:
                rows += [row_of[place] for place in places]
                outputs.append(work(token_ids[rows[-len(places) :]]))
        return torch.cat(outputs)[sorted(range(len(rows)), key=rows.__getitem__)]

    def read(self, token_ids: Sequence[int]) -> Tensor:
        """Let every row read the same tokens, in chunks; nothing is evicted meanwhile.

        Gives [rows, vocabulary] float32 logits after the last one.
        """
        rows = len(self.context.places)
        tokens = torch.tensor([token_ids], device=self.loaded.device)
        logits = tokens.new_empty(0)
        with read_as_whole(self.loaded.model, self.context.parts[0].position + len(token_ids)):
            for part in torch.split(tokens, READ_CHUNK, dim=1):
                logits = self._forward(part.expand(rows, -1), 1)[:, -1].float()
                self.context.commit(part.shape[1], generated=False)
        return logits

    def _replayed(self, token_ids: Tensor) -> Tensor | None:
        """The logits by a recorded step; None where the pass is to be computed as always."""
        if token_ids.shape[1] > 1 or self.context.record_row is not None:
            return None
        self.context.check()
        return self._graph.step(self.context.parts, token_ids, self._pass)

    def _forward(self, token_ids: Tensor, logits_to_keep: int) -> Tensor:
        steps = torch.arange(token_ids.shape[1], device=token_ids.device)
        start_of = {place: part.position for part in self.context.parts for place in part.places}
        starts = [start_of[place] for place in sorted(start_of)]
        if len(set(starts)) > 1:
            positions = torch.tensor(starts, device=token_ids.device)[:, None] + steps
        else:  # no list to copy to the device in every step
            positions = (steps + starts[0]).expand_as(token_ids)
        return self._pass(token_ids, positions, logits_to_keep)

    def _pass(self, token_ids: Tensor, positions: Tensor, logits_to_keep: int = 1) -> Tensor:
        """Logits [rows, logits_to_keep, vocabulary] of tokens and their positions."""
        output = self.loaded.model(
            input_ids=token_ids,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=logits_to_keep,
            ckv_context=self.context,
        )
        return output.logits  # type: ignore[no-any-return]
