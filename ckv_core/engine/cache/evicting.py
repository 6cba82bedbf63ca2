"""EvictingSlots: one layer's entries of one row that goes on evicting while it generates.

Prompt and generated entries lie at exactly the size of what is held. Until the first eviction
those of the prompt stay in their segments, which other decodings share; then plain ones join the
generated ones, so that heads of equal length are one tensor. Beside a store's own segments plain
ones, such as each head's newest entries, join them from the start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor

from ckv_core.engine.cache.slots import PromptSlots
from ckv_core.methods.attention import join, partial
from ckv_core.methods.parts.scaling import Scaling, softmax
from ckv_core.methods.parts.store import PlainSegment, Segment
from ckv_core.models.rope import LayerRotary


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Entries of some heads, of equal count."""

    heads: tuple[int, ...]  # KV heads, ascending
    index: Tensor  # the same on the device
    segment: Segment
    positions: Tensor  # [heads, length] int64, ascending
    carried: Mapping[str, Tensor] = field(default_factory=dict)  # [heads, length] by name

    @property
    def length(self) -> int:
        return self.positions.shape[1]

    def take(self, members: Sequence[int]) -> "Piece":
        """Only these of the heads, by place."""
        if list(members) == list(range(len(self.heads))):
            return self
        at = torch.tensor(members, device=self.index.device)
        return Piece(
            heads=tuple(self.heads[each] for each in members),
            index=self.index[at],
            segment=self.segment.take(at),
            positions=self.positions[at],
            carried={name: each[at] for name, each in self.carried.items()},
        )

    def stretch(self, segment: Segment, first: int) -> "Piece":
        """The part of it that such a segment holds, from its entry `first` on."""
        at = slice(first, first + segment.length)
        return replace(
            self,
            segment=segment,
            positions=self.positions[:, at],
            carried={name: each[:, at] for name, each in self.carried.items()},
        )

    def followed_by(
        self,
        states: tuple[Tensor, Tensor],
        positions: Tensor,
        carried: Mapping[str, Tensor] | None = None,
    ) -> "Piece":
        """With further entries of the same heads, keys and values [heads, tokens, dim].

        Positions and what is carried of them, 0 where that is not given, are [heads, tokens].
        """
        pairs = zip(self.segment.decoded(), states, strict=True)
        new = carried or {
            name: old.new_zeros(positions.shape) for name, old in self.carried.items()
        }
        return replace(
            self,
            segment=PlainSegment(*(torch.cat(pair, 1) for pair in pairs)),
            positions=torch.cat([self.positions, positions], 1),
            carried={name: torch.cat([old, new[name]], 1) for name, old in self.carried.items()},
        )

    def cut(self, mask: Tensor, counts: Sequence[int]) -> "list[Piece]":
        """Returns what a mask [heads, length] bool keeps, by count of True, known to the host."""
        by_count: dict[int, list[int]] = {}
        for at, count in enumerate(counts):
            by_count.setdefault(count, []).append(at)
        cut_pieces = []
        for count, members in by_count.items():
            of_count = mask[members] if len(by_count) > 1 else mask
            piece = self.take(members)
            if count < self.length:
                kept = places(of_count, count)
                piece = replace(
                    piece,
                    segment=piece.segment.keep(kept),
                    positions=piece.positions.gather(1, kept),
                    carried={name: each.gather(1, kept) for name, each in piece.carried.items()},
                )
            cut_pieces.append(piece)
        return cut_pieces


def places(mask: Tensor, most: int) -> Tensor:
    """Columns of each row's True, [rows, most] int64, -1 after the end of rows that have fewer.

    The device is not waited for: no row of the mask [rows, columns] has over `most`.
    """
    ranks = mask.cumsum(1).sub_(1).masked_fill_(~mask, most)
    columns = torch.arange(mask.shape[1], device=mask.device).expand_as(ranks)
    filled = torch.full((len(mask), most + 1), -1, device=mask.device)
    return filled.scatter_(1, ranks, columns)[:, :most]


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Plain pieces of equal length as one, heads ascending."""
    by_length: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_length.setdefault(piece.length, []).append(piece)
    whole = []
    for same in by_length.values():
        if len(same) == 1:
            whole.append(same[0])
            continue
        heads = [head for piece in same for head in piece.heads]
        keys, values = zip(*(piece.segment.decoded() for piece in same), strict=True)
        joined = Piece(
            heads=tuple(heads),
            index=torch.cat([piece.index for piece in same]),
            segment=PlainSegment(torch.cat(keys), torch.cat(values)),
            positions=torch.cat([piece.positions for piece in same]),
            carried={
                name: torch.cat([piece.carried[name] for piece in same]) for name in same[0].carried
            },
        )
        whole.append(joined.take(sorted(range(len(heads)), key=heads.__getitem__)))
    return whole


class EvictingSlots:
    """Slots of one row: `attend` and `commit` as of SlotCache, and eviction between passes."""

    def __init__(
        self,
        prompt: PromptSlots,
        mask: Tensor | None,
        carried: Mapping[str, Tensor],
        queries: int,
        rotary: LayerRotary | None = None,
    ) -> None:
        """Begin with what a row keeps of its prompt.

        Args:
            prompt: of this row alone.
            mask: [kv_heads, prompt_len] bool, what it keeps; None for everything.
            carried: [kv_heads, prompt_len] by name.
            queries: how many of the newest to keep.
            rotary: puts keys at their places among what is held; every head holds equally many
                then. None leaves them where they are in the text.
        """
        keys, values = prompt.like
        self._kv_heads = prompt.kv_heads
        everyone = torch.arange(self._kv_heads, device=keys.device)
        if mask is None:
            mask = torch.ones_like(everyone, dtype=torch.bool)[:, None].expand(
                -1, prompt.prompt_len
            )
        held: list[tuple[Segment, Sequence[int]]]
        held = [(stack.segment, stack.slots) for stack in prompt.stacks]
        if prompt.whole is not None:
            held = [(PlainSegment(*prompt.whole), range(self._kv_heads))]
        self._fixed: list[Piece] = []  # of the prompt: nothing is added to them
        grown: list[Piece] = []
        is_plain = all(isinstance(segment, PlainSegment) for segment, _ in held)
        for segment, heads in held:
            index = everyone[list(heads)]
            positions = mask[index].nonzero()[:, 1].view(len(heads), segment.length)
            own = {name: each[index].gather(1, positions) for name, each in carried.items()}
            whole, first = Piece(tuple(heads), index, segment, positions, own), 0
            for part in segment.stretches:
                joins = isinstance(part, PlainSegment) and not is_plain
                (grown if joins else self._fixed).append(whole.stretch(part, first))
                first += part.length
        joined = {head for piece in grown for head in piece.heads}
        if rest := [head for head in range(self._kv_heads) if head not in joined]:
            index, empty = everyone[rest], PlainSegment(keys[rest], values[rest])
            none = {name: each[index, :0] for name, each in carried.items()}
            grown.append(Piece(tuple(rest), index, empty, index[:, None][:, :0], none))
        self._growing = merged(grown)
        self._pending = self._growing  # with the entries of the last pass
        self._next = prompt.prompt_len
        self._rotary = rotary
        self._most = max(queries, 1)
        self._queries = self._newest = keys.new_empty(0)
        self._scaling = Scaling(1.0)

    @property
    def _pieces(self) -> list[Piece]:
        """Each head is in at most one of those that are fixed, and in one of those that grow."""
        return [*self._fixed, *self._growing]

    @property
    def entries(self) -> int:
        return sum(piece.positions.numel() for piece in self._pieces)

    @property
    def nbytes(self) -> int:
        return sum(piece.segment.nbytes for piece in self._pieces)

    @property
    def grown_bytes(self) -> int:
        """Returns the bytes of those that no other decoding shares."""
        return sum(piece.segment.nbytes for piece in self._growing)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: Scaling) -> Tensor:
        _, query_heads, tokens, head_dim = query.shape
        self._newest, self._scaling = query[0, :, -self._most :], scaling
        positions = torch.arange(self._next, self._next + tokens, device=key.device)
        self._pending = [
            piece.followed_by(
                (self._of(piece, key[0]), self._of(piece, value[0])),
                positions.expand(len(piece.heads), -1),
            )
            for piece in self._growing
        ]
        queries = query.reshape(self._kv_heads, -1, head_dim)
        before = self._ends(len(self._fixed))[0]
        own = self._attended(self._placed(self._pending, before), queries, tokens)
        own = scaling.joined(*own, tokens)
        fixed = self._placed([piece for piece in self._fixed if piece.length], 0)
        out = join(own, self._attended(fixed, queries, 1)) if fixed else own[0]
        return out.view(1, query_heads, tokens, -1).to(query.dtype)

    def _placed(self, pieces: list[Piece], first: int) -> list[Piece]:
        """Keys moved by what was evicted after them, so that new ones need not move.

        Their first entries lie at the place `first` of what their heads hold.
        """
        if self._rotary is None:
            return pieces
        evicted, placed = self._next - self.lengths[0], []
        for piece in pieces:
            keys, values = piece.segment.decoded()
            place = torch.arange(first, first + piece.length, device=keys.device)
            moved = self._rotary.move(keys, evicted - (piece.positions - place)).to(keys.dtype)
            placed.append(replace(piece, segment=PlainSegment(moved, values)))
        return placed

    def _attended(
        self, pieces: Sequence[Piece], queries: Tensor, tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Output [kv_heads, group * tokens, value_dim] and log-sum-exp over some entries.

        The queries are of the last `tokens` entries of each piece, where those are more than one.
        """
        parts = []
        for piece in pieces:
            own = self._of(piece, queries)
            if tokens > 1:
                mask = torch.ones(tokens, piece.length, dtype=torch.bool, device=own.device)
                mask = mask.tril(piece.length - tokens).repeat(own.shape[1] // tokens, 1)
                parts.append(partial(own, *piece.segment.decoded(), self._scaling, mask))
            else:
                parts.append(piece.segment.attend(own, self._scaling))
        if len(pieces[0].heads) == self._kv_heads:
            return parts[0]
        out = parts[0][0].new_zeros(*queries.shape[:2], parts[0][0].shape[2])
        total = torch.full_like(out[..., 0], -torch.inf)
        for piece, part in zip(pieces, parts, strict=True):
            out[piece.index], total[piece.index] = part
        return out, total

    def _of(self, piece: Piece, states: Tensor) -> Tensor:
        """A piece's heads of a tensor [kv_heads, ...]."""
        return states if len(piece.heads) == self._kv_heads else states[piece.index]

    def commit(self, tokens: int) -> None:
        self._growing, self._pending = self._pending, []
        self._next += tokens
        earlier = [self._queries] if self._queries.numel() else []
        self._queries = torch.cat([*earlier, self._newest], 1)[:, -self._most :]

    # --- what a policy sees and does ------------------------------------------------------

    def positions(self) -> Tensor:
        """[kv_heads, entries] int64, oldest first; -1 after the end of shorter heads."""
        return self._padded([piece.positions for piece in self._pieces], -1)

    def carried(self) -> dict[str, Tensor]:
        """Returns what a policy wrote of each entry, [kv_heads, entries] by name; new ones: 0."""
        return {
            name: self._padded([piece.carried[name] for piece in self._pieces], 0)
            for name in self._growing[0].carried
        }

    def probabilities(self) -> Tensor:
        """Attention of the last pass's newest query, [query_heads, entries] float32; padding 0."""
        newest = self._queries[:, -1].float()
        query = newest.view(self._kv_heads, -1, newest.shape[-1])
        logits = [
            torch.bmm(piece.segment.decoded()[0].float(), self._of(piece, query).transpose(1, 2))
            for piece in self._pieces
        ]
        padded = self._scaling.logits_(self._padded(logits, -torch.inf))
        sink = self._scaling.grouped_sink(self._kv_heads)
        return softmax(padded, sink, dim=1).transpose(1, 2).flatten(0, 1)

    def since(self, position: int) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, entries, dim] from a position on, as many in every head."""
        keys: list[list[Tensor]] = [[] for _ in range(self._kv_heads)]
        values: list[list[Tensor]] = [[] for _ in range(self._kv_heads)]
        for piece in self._pieces:
            of_keys, of_values = piece.segment.decoded()
            for at, head in enumerate(piece.heads):
                late = piece.positions[at] >= position
                keys[head].append(of_keys[at][late])
                values[head].append(of_values[at][late])
        of_heads = ([torch.cat(parts) for parts in each] for each in (keys, values))
        stacked_keys, stacked_values = map(torch.stack, of_heads)
        return stacked_keys, stacked_values

    def queries(self) -> tuple[Tensor, Scaling]:
        """The newest committed, [query_heads, queries, head_dim], and the layer's scaling."""
        return self._queries, self._scaling

    def write(self, carried: Mapping[str, Tensor]) -> None:
        """Keep what a policy wrote about each entry, laid out as `positions`."""
        parts = {name: self._split(each) for name, each in carried.items()}
        pieces = [
            replace(piece, carried={name: own[at] for name, own in parts.items()})
            for at, piece in enumerate(self._pieces)
        ]
        fixed = len(self._fixed)
        self._fixed, self._growing = pieces[:fixed], pieces[fixed:]

    @property
    def lengths(self) -> list[int]:
        return self._ends(len(self._pieces))

    def counted(self, keep: Tensor) -> Tensor:
        """How many entries [kv_heads, entries] bool keeps of each piece's heads, one after another.

        A head lies in several pieces where a store holds the prompt's entries apart.
        """
        return torch.cat([mask.sum(1) for mask in self._split(keep)])

    def by_head(self, counts: Sequence[int]) -> list[int]:
        """Sums the counts of `counted` over the pieces of each KV head."""
        totals = [0] * self._kv_heads
        heads = [head for piece in self._pieces for head in piece.heads]
        for head, count in zip(heads, counts, strict=True):
            totals[head] += count
        return totals

    def evict(self, keep: Tensor, counts: Sequence[int]) -> None:
        """Go on with [kv_heads, entries] bool, laid out as `positions`; `counts` of `counted`."""
        if self._fixed and all(isinstance(piece.segment, PlainSegment) for piece in self._fixed):
            totals = self.by_head(counts)
            # The prompt's entries lie with the generated ones from now on; orders stay.
            (grown,) = self._growing  # until the first eviction all heads grow alike
            opened = []
            for piece in self._fixed:
                own = grown.take(piece.heads)
                opened.append(piece.followed_by(own.segment.decoded(), own.positions, own.carried))
            self._fixed, self._growing = [], opened
            counts = [totals[head] for piece in self._pieces for head in piece.heads]
        of_pieces = iter(counts)
        cut = [
            piece.cut(mask, list(islice(of_pieces, len(piece.heads))))
            for piece, mask in zip(self._pieces, self._split(keep), strict=True)
        ]
        fixed = len(self._fixed)
        self._fixed = [piece for pieces in cut[:fixed] for piece in pieces if piece.length]
        self._growing = merged([piece for pieces in cut[fixed:] for piece in pieces])

    def _padded(self, of_pieces: Sequence[Tensor], fill: float) -> Tensor:
        """[kv_heads, entries, ...] from tensors [heads, length, ...] of all pieces."""
        if len(of_pieces) == 1:
            return of_pieces[0]
        longest = max(self._ends(len(self._pieces)))
        first = of_pieces[0]
        padded = first.new_full((self._kv_heads, longest, *first.shape[2:]), fill)
        for at, (piece, rows) in enumerate(zip(self._pieces, of_pieces, strict=True)):
            starts = self._ends(at)
            for row, head in zip(rows, piece.heads, strict=True):
                padded[head, starts[head] : starts[head] + len(row)] = row
        return padded

    def _split(self, padded: Tensor) -> list[Tensor]:
        """Parts what `_padded` joined, [heads, length] for each piece."""
        if len(self._pieces) == 1:
            return [padded]
        of_pieces = []
        for at, piece in enumerate(self._pieces):
            starts = self._ends(at)
            rows = [
                padded[head, starts[head] : starts[head] + piece.length] for head in piece.heads
            ]
            of_pieces.append(torch.stack(rows))
        return of_pieces

    def _ends(self, pieces: int) -> list[int]:
        """Entries of each head in the first so many pieces."""
        ends = [0] * self._kv_heads
        for piece in self._pieces[:pieces]:
            for head in piece.heads:
                ends[head] += piece.length
        return ends
