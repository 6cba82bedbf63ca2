"""What every prompt token attends to, summed: the evidence of H2O (arXiv:2306.14048)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckv_core.lazy_torch import torch
from ckv_core.methods.parts.views import Chunk, PromptShape

if TYPE_CHECKING:
    from torch import Tensor

_FLOAT = 4  # bytes
_QUERIES = 128  # of one KV head's group whose attention exists at a time


@dataclass(frozen=True, slots=True)
class AccumulatedAttention:
    """Per query head and entry, the attention that all queries of the prompt give to it.

    The attention of a block of queries is written out, summed and forgotten: the matrix of all
    queries by all entries never exists.
    """

    key: str = "accumulated attention"

    def begin(self, query_heads: int, kv_heads: int, prompt_len: int, like: Tensor) -> Tensor:
        """[query_heads, prompt_len] float32."""
        return torch.zeros(query_heads, prompt_len, dtype=torch.float32, device=like.device)

    def see(self, statistic: Tensor, chunk: Chunk) -> None:
        kv_heads, entries, _ = chunk.keys.shape
        grouped = chunk.queries.view(kv_heads, -1, *chunk.queries.shape[1:])
        sums = statistic.view(kv_heads, -1, statistic.shape[1])[..., :entries]
        places = torch.arange(entries, device=chunk.keys.device)
        for first in range(0, grouped.shape[2], _QUERIES):
            queries = grouped[:, :, first : first + _QUERIES]
            own = places[chunk.start + first :][: queries.shape[2], None]
            for head in range(kv_heads):
                logits = queries[head].float() @ chunk.keys[head].float().T
                logits = (logits * chunk.scaling).masked_fill_(places > own, -torch.inf)
                sums[head] += logits.softmax(-1).sum(1)

    def nbytes(self, shape: PromptShape) -> int:
        return _FLOAT * shape.query_heads * shape.prompt_len

    def work_bytes(self, shape: PromptShape, chunk: int) -> int:
        group_size = shape.query_heads // shape.kv_heads
        return _FLOAT * 3 * group_size * min(_QUERIES, chunk) * shape.prompt_len


ACCUMULATED = AccumulatedAttention()
