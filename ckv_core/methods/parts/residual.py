"""What stores that leave the newest entries as they are have in common."""

from __future__ import annotations

from dataclasses import dataclass

from ckv_core.methods.parameters import Parameter, integer
from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.plain import PlainSegment
from ckv_core.methods.parts.store import Segment
from ckv_core.runtime.lazy_torch import Tensor, torch

RESIDUAL = Parameter(
    name="residual",
    help="With store=int4 and store=think: kept entries of each KV head, the newest, that stay as "
    "they are.",
    default=32,
    parse=integer("residual", 0, 4096),
)


def older(length: int, parameters: Parameters) -> int:
    """Entries of a head of so many that do not stay as they are."""
    return max(0, length - int(parameters[RESIDUAL.name]))


@dataclass(frozen=True, slots=True)
class ResidualSegment(Segment):
    """Older entries in some form, and after them plain ones."""

    older: Segment
    newest: PlainSegment

    @property
    def heads(self) -> int:
        return self.newest.heads

    @property
    def length(self) -> int:
        return self.older.length + self.newest.length

    @property
    def nbytes(self) -> int:
        return self.older.nbytes + self.newest.nbytes

    def decoded(self) -> tuple[Tensor, Tensor]:
        pairs = zip(self.older.decoded(), self.newest.decoded(), strict=True)
        keys, values = (torch.cat(pair, 1) for pair in pairs)
        return keys, values

    def take(self, heads: Tensor) -> Segment:
        return ResidualSegment(self.older.take(heads), self.newest.take(heads))

    def keep(self, places: Tensor) -> Segment:
        """Of older entries as many stay so in every head; the others of a head become plain."""
        count = int((places < self.older.length).sum(1).min())
        rest = PlainSegment(*self.decoded()).keep(places[:, count:])
        return ResidualSegment(self.older.keep(places[:, :count]), rest) if count else rest
