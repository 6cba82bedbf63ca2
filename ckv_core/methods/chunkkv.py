"""ChunkKV: whole chunks of tokens, so that what is kept can be read.

kvpress adds up the scores of a layer's heads (`chunks_of=layer`) and rounds to whole chunks, the
window's among them; here totals are exact, so the last chunk may be cut.
"""

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import ParameterValue, choice, integer
from ckv_core.methods.parts.base import Candidates, Kept, Parameters, PerEntry, Selector
from ckv_core.methods.parts.press import SNAPKV, Press
from ckv_core.methods.parts.top_k import keep_first
from ckv_core.methods.parts.views import LayerView
from ckv_core.methods.parts.window import WINDOW_SCORER

CHUNK = integer("chunk", 10, (1, 4096), kvpress=20).means("ChunkKV: tokens of a chunk.")
CHUNKS_OF = choice("chunks_of", ("head", "layer"), kvpress="layer").means(
    "ChunkKV: each KV head keeps chunks of its own; or all heads of a layer the same, those "
    "that reach into the window first (kvpress)."
)


class Chunks(Selector):
    """Chunks by falling mean score; the last one of a head is cut where its budget ends."""

    parameters = (CHUNK, CHUNKS_OF)
    work = PerEntry(kv_heads=3)

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
                scores = scores.mean(0, keepdim=True).expand_as(scores)
            chunks = torch.split(scores, size, dim=-1)  # counted from position 0
            shared = [chunk.mean(-1, keepdim=True).expand_as(chunk) for chunk in chunks]
            return torch.cat(shared, dim=-1)

        order = candidates.by(key, means)
        return Kept(keep_first(order[layers], head_budgets))


register(
    name="chunkkv",
    label="ChunkKV",
    summary="SnapKV's scores; keeps whole chunks of `chunk` tokens by their mean.",
    source="Liu et al. 2025, arXiv:2502.00299",
    scorer=WINDOW_SCORER,
    selector=Chunks(),
    press=Press("ChunkKVPress", {"chunk_length": "chunk"}, SNAPKV),
)
