"""Whole chunks of consecutive entries, by the mean of their scores (arXiv:2502.00299)."""

from __future__ import annotations

from ckv_core.methods.parameters import Choice, Parameter, ParameterValue, integer
from ckv_core.methods.parts.base import Candidates, Kept, Parameters, Selector
from ckv_core.methods.parts.top_k import keep_first
from ckv_core.methods.parts.views import LayerView, PromptShape
from ckv_core.runtime.lazy_torch import Tensor, torch

CHUNK = Parameter(
    name="chunk",
    help="ChunkKV: tokens of a chunk.",
    default=10,
    kvpress=20,
    parse=integer("chunk", 1, 4096),
)
CHUNKS_OF = Parameter(
    name="chunks_of",
    help="ChunkKV: each KV head keeps chunks of its own; or all heads of a layer the same, those "
    "that reach into the window first (kvpress).",
    default="head",
    kvpress="layer",
    parse=Choice("chunks_of", "head", "layer"),
)


class Chunks(Selector):
    """Chunks by falling mean score; the last one of a head is cut where its budget ends."""

    name = "chunks"
    parameters = (CHUNK, CHUNKS_OF)

    def orders(self, parameters: Parameters) -> tuple[tuple[ParameterValue, ...], ...]:
        return (("chunks", *(parameters[parameter.name] for parameter in self.parameters)),)

    def keep(self, candidates: Candidates, layers: slice, head_budgets: Tensor) -> Kept:
        scorer, parameters = candidates.scorer, candidates.parameters
        (key,) = self.orders(parameters)
        size, whole_layer = int(parameters["chunk"]), parameters["chunks_of"] == "layer"

        def means(view: LayerView) -> Tensor:
            scores = scorer.scores(view, parameters)
            if whole_layer:
                window = view.keys.shape[1] - scores.shape[1]
                scores = torch.nn.functional.pad(scores, (0, window), value=float(scores.max()) + 1)
            return chunk_means(scores, size, whole_layer)

        order = candidates.by(key, means)
        return Kept(keep_first(order[layers], head_budgets))

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        return 12 * shape.kv_heads * shape.prompt_len


CHUNKS = Chunks()


def chunk_means(scores: Tensor, size: int, whole_layer: bool) -> Tensor:
    """Each entry's chunk's mean score, shapes as they are; chunks are counted from position 0."""
    if whole_layer:
        scores = scores.mean(0, keepdim=True).expand_as(scores)
    chunks = torch.split(scores, size, dim=-1)
    return torch.cat([each.mean(-1, keepdim=True).expand_as(each) for each in chunks], dim=-1)
