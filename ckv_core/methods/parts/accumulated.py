"""What every prompt token attends to, summed: the evidence of H2O (arXiv:2306.14048)."""

from __future__ import annotations

from dataclasses import dataclass

from ckv_core.methods.parts.views import Chunk, PromptShape
from ckv_core.runtime.lazy_torch import Tensor, torch

_FLOAT = 4  # bytes
_QUERIES = 64  # of one KV head's group whose attention exists at a time


@dataclass(frozen=True, slots=True)
class AccumulatedAttention:
    """Per query head and entry, the attention that all queries of the prompt give to it.

    The attention of a block of queries is written out from the log-sum-exp, summed and forgotten:
    the matrix of all queries by all entries never exists.
    """

    key: str = "accumulated attention"

    def begin(self, query_heads: int, kv_heads: int, prompt_len: int, like: Tensor) -> Tensor:
        """[query_heads, prompt_len] float32."""
        return torch.zeros(query_heads, prompt_len, dtype=torch.float32, device=like.device)

    def see(self, statistic: Tensor, chunk: Chunk) -> None:
        kv_heads = len(chunk.keys)
        grouped = chunk.queries.view(kv_heads, -1, *chunk.queries.shape[1:])
        totals = chunk.log_sum_exp().view(*grouped.shape[:3], 1)
        sums = statistic.view(kv_heads, -1, statistic.shape[1])
        for first in range(0, grouped.shape[2], _QUERIES):
            block = slice(first, min(first + _QUERIES, grouped.shape[2]))
            seen, count = chunk.start + block.stop, block.stop - first
            later = torch.ones(count, count, dtype=torch.bool, device=chunk.keys.device).triu_(1)
            for head in range(kv_heads):
                keys = chunk.keys[head, :seen].float()
                logits = (grouped[head, :, block].float() @ keys.T).mul_(chunk.scaling)
                weights = logits.sub_(totals[head, :, block]).exp_()
                weights[..., seen - count :].masked_fill_(later, 0)
                sums[head, :, :seen] += weights.sum(1)

    def nbytes(self, shape: PromptShape) -> int:
        return _FLOAT * shape.query_heads * shape.prompt_len

    def work_bytes(self, shape: PromptShape, chunk: int) -> int:
        group_size = shape.query_heads // shape.kv_heads
        return _FLOAT * 3 * group_size * min(_QUERIES, chunk) * shape.prompt_len


ACCUMULATED = AccumulatedAttention()
