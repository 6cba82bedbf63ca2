"""Attention within tiles of the prompt, to later entries too: what Compactor gathers."""

from __future__ import annotations

from dataclasses import dataclass

from ckv_core.methods.parts.views import Chunk, PromptShape
from ckv_core.runtime.lazy_torch import Tensor, torch

_FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class NonCausalAttention:
    """Attention that an entry gets from all queries of its tile, summed, per query head.

    Tiles are counted after the first `sinks` tokens and end before the last `recent`. Logits are
    not scaled. A last tile that is not full counts as if each missing query attended equally to
    all; its missing entries draw attention as entries of logit 0 where `attended`, as kvpress has
    it, else none.

    [query_heads, prompt_len + tile * head_dim] float32: the sums, then the queries of a tile whose
    last entries are not read yet.
    """

    tile: int
    sinks: int
    recent: int
    attended: bool

    @property
    def key(self) -> tuple[str, int, int, int, bool]:
        """Equal for equal statistics."""
        return ("attention within tiles", self.tile, self.sinks, self.recent, self.attended)

    def begin(self, query_heads: int, kv_heads: int, prompt_len: int, like: Tensor) -> Tensor:
        width = prompt_len + self.tile * like.shape[-1]
        return torch.zeros(query_heads, width, dtype=torch.float32, device=like.device)

    def see(self, statistic: Tensor, chunk: Chunk) -> None:
        heads, tokens, head_dim = chunk.queries.shape
        prompt_len = statistic.shape[1] - self.tile * head_dim
        held = statistic[:, prompt_len:].view(heads, self.tile, head_dim)
        end = prompt_len - self.recent
        first = max(chunk.start - self.sinks, 0) // self.tile * self.tile + self.sinks
        for start in range(first, min(chunk.start + tokens, end), self.tile):
            stop = min(start + self.tile, end)
            new = slice(max(start, chunk.start), min(stop, chunk.start + tokens))
            own = chunk.queries[:, new.start - chunk.start : new.stop - chunk.start]
            held[:, new.start - start : new.stop - start] = own
            if new.start < new.stop == stop:
                sums = statistic[:, start:stop]
                self._attend(sums, held[:, : stop - start], chunk.keys[:, start:stop])

    def _attend(self, sums: Tensor, queries: Tensor, keys: Tensor) -> None:
        """The attention of one tile's queries [query_heads, size, dim] to its keys."""
        kv_heads, size, _ = keys.shape
        missing = self.tile - size
        for own, grouped, key in zip(
            sums.view(kv_heads, -1, size),  # writes into the statistic
            queries.reshape(kv_heads, -1, *queries.shape[1:]),
            keys.float(),
            strict=True,
        ):
            logits = grouped @ key.T
            if self.attended:
                logits = torch.nn.functional.pad(logits, (0, missing))
            own.add_(logits.softmax(-1)[..., :size].sum(1) + missing / self.tile)

    def nbytes(self, shape: PromptShape) -> int:
        return _FLOAT * shape.query_heads * (shape.prompt_len + self.tile * shape.head_dim)

    def work_bytes(self, shape: PromptShape, chunk: int) -> int:
        group = shape.query_heads // shape.kv_heads
        tile = min(self.tile, shape.prompt_len)
        return _FLOAT * tile * (4 * group * self.tile + shape.kv_heads * shape.head_dim)
