"""Mean and covariance of a layer's queries before RoPE: what Expected Attention gathers."""

from __future__ import annotations

from dataclasses import dataclass

from ckv_core.methods.parts.views import Chunk, PromptShape
from ckv_core.runtime.lazy_torch import Tensor, torch


@dataclass(frozen=True, slots=True)
class QueryStatistics:
    """Of all queries but those of the first `sinks` tokens, per query head.

    [query_heads, head_dim + 1, head_dim] float32: sums of products of deviations, then the mean.
    Chunks are joined by their means (Chan et al. 1979), so that nothing cancels.
    """

    sinks: int

    @property
    def key(self) -> tuple[str, int]:
        """Equal for equal statistics."""
        return ("queries before RoPE", self.sinks)

    def begin(self, query_heads: int, kv_heads: int, prompt_len: int, like: Tensor) -> Tensor:
        head_dim = like.shape[-1]
        shape = (query_heads, head_dim + 1, head_dim)
        return torch.zeros(shape, dtype=torch.float32, device=like.device)

    def see(self, statistic: Tensor, chunk: Chunk) -> None:
        seen = max(chunk.start - self.sinks, 0)
        queries = chunk.queries[:, max(self.sinks - chunk.start, 0) :]
        new, rotary = queries.shape[1], chunk.rotary()
        start = max(chunk.start, self.sinks)
        for head in range(len(queries) if new else 0):
            plain = rotary.undo(queries[head : head + 1].float(), start)[0]
            mean = plain.mean(0)
            moved, plain = mean - statistic[head, -1], plain - mean
            statistic[head, :-1] += plain.T @ plain
            statistic[head, :-1] += torch.outer(moved, moved) * (seen * new / (seen + new))
            statistic[head, -1] += moved * (new / (seen + new))

    def moments(self, statistic: Tensor, prompt_len: int) -> tuple[Tensor, Tensor]:
        """[query_heads, head_dim] means and [query_heads, head_dim, head_dim] covariances."""
        return statistic[:, -1], statistic[:, :-1] / max(prompt_len - self.sinks, 1)

    def nbytes(self, shape: PromptShape) -> int:
        return 4 * shape.query_heads * (shape.head_dim + 1) * shape.head_dim

    def work_bytes(self, shape: PromptShape, chunk: int) -> int:
        return 4 * (10 * chunk * shape.head_dim + 3 * shape.head_dim**2)
