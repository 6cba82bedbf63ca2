"""Knorm: entries with small keys; it needs no query.

The authors leave the first layers and prompts below 2,048 tokens whole and evict at each step;
kvpress and this do not. Where a model normalises keys (Qwen3, Gemma3) the norms hardly differ.
"""

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parts.base import Parameters, Scorer
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.views import LayerView


class KeyNorm(Scorer):
    """Minus the L2 norm of the key, in float32: bfloat16 would tie most of them."""

    query_aware = False
    across_heads = False

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(view.keys, dim=-1, dtype=torch.float32)
        return -norms


register(
    name="knorm",
    label="Knorm",
    summary="Keeps the keys of smallest L2 norm; looks at no query.",
    source="Devoto et al. 2024, arXiv:2406.11430",
    scorer=KeyNorm(),
    press=Press("KnormPress"),
)
