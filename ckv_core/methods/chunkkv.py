"""ChunkKV: whole chunks of tokens, so that what is kept can be read.

kvpress adds up the scores of a layer's heads (`chunks_of=layer`) and rounds to whole chunks, the
window's among them; here totals are exact, so the last chunk may be cut.
"""

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.chunks import CHUNKS
from ckv_core.methods.parts.press import SNAPKV, Press
from ckv_core.methods.parts.shares import UNIFORM
from ckv_core.methods.parts.window import WINDOW_SCORER

METHODS.register(
    Method(
        name="chunkkv",
        label="ChunkKV",
        summary="SnapKV's scores; keeps whole chunks of `chunk` tokens by their mean.",
        source="Liu et al. 2025, arXiv:2502.00299",
        scorer=WINDOW_SCORER,
        budget_rule=UNIFORM,
        selector=CHUNKS,
        press=Press("ChunkKVPress", {"chunk_length": "chunk"}, SNAPKV),
    )
)
