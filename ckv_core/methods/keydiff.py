"""KeyDiff: entries whose keys differ most from the head's mean key; it needs no query.

The authors evict after each block of the prompt (`prefill=blocks:128`) and while generating. By
default all entries are scored once, as in kvpress.
"""

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parts.base import Parameters, PerEntry, Scorer
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.views import LayerView


class KeyDifference(Scorer):
    """Minus the cosine of a key, after RoPE, to the mean of all keys at unit length."""

    query_aware = False
    across_heads = False
    work = PerEntry(keys=4)

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        keys = view.keys.float()
        anchor = torch.nn.functional.normalize(keys, dim=-1).mean(1, keepdim=True)
        return -torch.nn.functional.cosine_similarity(keys, anchor, dim=-1)


register(
    name="keydiff",
    label="KeyDiff",
    summary="Keeps the keys that differ most from a head's mean key; looks at no query.",
    source="Park et al. 2025, arXiv:2504.15364",
    scorer=KeyDifference(),
    press=Press("KeyDiffPress"),
)
