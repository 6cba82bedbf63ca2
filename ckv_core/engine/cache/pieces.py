"""Entries of some heads of one row, of equal count, with their positions; never changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ckv_core.methods.parts.store import PlainSegment, Segment


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
        """What a mask [heads, length] bool keeps, by its count of True, which the host knows."""
        by_count: dict[int, list[int]] = {}
        for at, count in enumerate(counts):
            by_count.setdefault(count, []).append(at)
        cut_pieces = []
        for count, members in by_count.items():
            of_count = mask[members] if len(by_count) > 1 else mask
            cut_pieces.append(self.take(members)._at(places(of_count, count)))
        return cut_pieces

    def _at(self, places: Tensor) -> "Piece":
        if places.shape[1] == self.length:
            return self
        return replace(
            self,
            segment=self.segment.keep(places),
            positions=self.positions.gather(1, places),
            carried={name: each.gather(1, places) for name, each in self.carried.items()},
        )


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
