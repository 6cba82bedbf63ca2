"""ChunkKV: whole chunks of tokens, so that what is kept can be read.

kvpress adds up the scores of a layer's heads (`chunks_of=layer`); here totals are exact, so the
last chunk may be cut. `gated_chunkkv` is kvpress's: of a chunk whose score lies in few tokens, only
the best `spiky` are kept.
"""

import math
from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import Parameter, ParameterValue, choice, integer
from ckv_core.methods.parts.base import Candidates, Kept, Parameters, PerEntry, Selector
from ckv_core.methods.parts.press import SNAPKV, Press
from ckv_core.methods.parts.top_k import keep_first
from ckv_core.methods.parts.views import LayerView
from ckv_core.methods.parts.window import WINDOW_SCORER

CHUNK = integer("chunk", 10, (1, 4096), kvpress=20).means("ChunkKV: tokens of a chunk.")
CHUNKS_OF = choice("chunks_of", ("head", "layer"), kvpress="layer").means(
    "ChunkKV: each KV head keeps its own chunks (head), or all heads of a layer the same (layer). "
    "Under layer, chunks that reach into the window come first."
)


class Chunks(Selector):
    """Chunks by falling mean score; the last one of a head is cut where its budget ends."""

    parameters: ClassVar[tuple[Parameter, ...]] = (CHUNK, CHUNKS_OF)
    work = PerEntry(kv_heads=3)

    def orders(self, parameters: Parameters) -> tuple[tuple[ParameterValue, ...], ...]:
        return ((self.name, *(parameters[parameter.name] for parameter in self.parameters)),)

    def keep(self, candidates: Candidates, layers: slice, head_budgets: Tensor) -> Kept:
        scorer, parameters = candidates.scorer, candidates.parameters
        (key,) = self.orders(parameters)

        def ranked(view: LayerView) -> Tensor:
            scores = scorer.scores(view, parameters)
            if parameters["chunks_of"] == "layer":
                window = view.keys.shape[1] - scores.shape[1]
                scores = torch.nn.functional.pad(scores, (0, window), value=float(scores.max()) + 1)
                scores = scores.mean(0, keepdim=True).expand_as(scores)
            return self.chunked(scores, parameters)

        order = candidates.by(key, ranked)
        return Kept(keep_first(order[layers], head_budgets))

    def chunked(self, scores: Tensor, parameters: Parameters) -> Tensor:
        """Scores by which whole chunks come together, [kv_heads, entries]; from position 0 on."""
        chunks = torch.split(scores, int(parameters["chunk"]), dim=-1)
        shared = [chunk.mean(-1, keepdim=True).expand_as(chunk) for chunk in chunks]
        return torch.cat(shared, dim=-1)


SPIKY = integer("spiky", 4, (1, 4095)).means(
    "Entropy-gated ChunkKV: tokens kept of an important chunk whose score lies in few tokens."
)
_LEAST = 1e-8  # beside shares, in their logarithm


class GatedChunks(Chunks):
    """As `Chunks`, but of important chunks of low entropy the best tokens; then single ones."""

    parameters = (CHUNK.but(kvpress=None), CHUNKS_OF, SPIKY)
    work = PerEntry(kv_heads=16)

    def check(self, parameters: Parameters) -> str:
        fits = int(parameters["spiky"]) < int(parameters["chunk"])
        return "" if fits else "'spiky' must be below 'chunk'."

    def chunked(self, scores: Tensor, parameters: Parameters) -> Tensor:
        chunks = torch.split(scores, int(parameters["chunk"]), dim=-1)
        means = torch.stack([chunk.mean(-1) for chunk in chunks], -1)
        entropies = torch.stack([_entropy(chunk) for chunk in chunks], -1)
        important = means >= means.median(-1, keepdim=True).values
        spiky = important & (entropies < entropies.median(-1, keepdim=True).values)
        inside = torch.cat([_rank(chunk) for chunk in chunks], -1)
        of = torch.arange(scores.shape[-1], device=scores.device) // chunks[0].shape[-1]
        late = spiky[:, of] & (inside >= int(parameters["spiky"]))
        by_chunk = _rank(means)[:, of] * chunks[0].shape[-1] + inside
        all_chunks = means.shape[-1] * chunks[0].shape[-1]
        return -torch.where(late, all_chunks + _rank(scores), by_chunk).float()


def _rank(scores: Tensor) -> Tensor:
    """Place of each in its row by falling score, from 0; ties: the earlier."""
    return scores.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


def _entropy(chunk: Tensor) -> Tensor:
    """Entropy of a chunk's scores [kv_heads, size], 0 to 1; of one token 0."""
    if chunk.shape[-1] == 1:
        return chunk.new_zeros(len(chunk))
    raised = chunk - chunk.amin(-1, keepdim=True).clamp(max=0)
    shares = raised / (raised.sum(-1, keepdim=True) + _LEAST)
    entropy = -(shares * (shares + _LEAST).log()).sum(-1)
    return (entropy / math.log(chunk.shape[-1])).clamp(0, 1)


register(
    name="chunkkv",
    label="ChunkKV",
    summary="SnapKV's scores; keeps whole chunks of `chunk` tokens by their mean.",
    source="Liu et al. 2025, arXiv:2502.00299",
    scorer=WINDOW_SCORER,
    selector=Chunks(),
    press=Press("ChunkKVPress", {"chunk_length": "chunk"}, SNAPKV),
)
register(
    name="gated_chunkkv",
    label="Entropy-gated ChunkKV",
    summary="ChunkKV, but of a chunk whose score lies in few tokens it keeps only these.",
    source="kvpress 2026, pull request 263",
    scorer=WINDOW_SCORER,
    selector=GatedChunks(),
    press=Press(
        "EntropyGatedChunkKVPress",
        {"chunk_length": "chunk", "low_entropy_chunk_length": "spiky"},
        SNAPKV,
    ),
)
