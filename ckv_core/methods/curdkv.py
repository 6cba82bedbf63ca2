"""CurDKV: entries whose keys and values are both large beside their neighbours'.

The score multiplies the key's and the value's squared norm, each as a share of its run of `local`
tokens. The paper first mixes both by a random matrix; kvpress leaves that off, and so does this.
"""

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import integer
from ckv_core.methods.parts.base import SINKS, Parameters, PerEntry, Scorer
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.views import LayerView

LOCAL = integer("local", 16, (1, 65536)).means(
    "CurDKV: tokens of a run; a key's or value's size counts as its share of the run's."
)


class LocalShares(Scorer):
    """The key's share of its run's squared L2 norms times the value's, over the head's sum."""

    parameters = (LOCAL, SINKS.but(default=4))
    query_aware = False
    non_negative = True
    work = PerEntry(kv_heads=6, keys=2)

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        size = int(parameters["local"])
        products = _shares(view.keys, size) * _shares(view.values, size)
        return products / products.sum(-1, keepdim=True).clamp(min=_TINY)


_TINY = 1.2e-38  # the least normal float32: keeps a run of zeros from 0 / 0


def _shares(states: Tensor, size: int) -> Tensor:
    """[kv_heads, entries] float32, summing to 1 in each run of `size` entries."""
    squared = states.float().square().sum(-1)
    entries = squared.shape[-1]
    runs = torch.nn.functional.pad(squared, (0, -entries % size)).view(len(squared), -1, size)
    shares: Tensor = runs / runs.sum(-1, keepdim=True).clamp(min=_TINY)
    return shares.flatten(1)[:, :entries]


register(
    name="curdkv",
    label="CurDKV",
    summary="Keeps entries whose key and value are large beside their neighbours'.",
    source="Sengupta et al. 2025, arXiv:2509.15038",
    scorer=LocalShares(),
    press=Press("CURPress", {"num_sinks": "sinks", "local_window_size": "local"}),
)
