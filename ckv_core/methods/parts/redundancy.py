"""R-KV's score: attention of the newest queries minus how alike a key is to others."""

from __future__ import annotations

from dataclasses import replace

from ckv_core.methods.parameters import Parameter, number
from ckv_core.methods.parts.base import Parameters, Scorer
from ckv_core.methods.parts.views import LayerView, PromptShape
from ckv_core.methods.parts.window import AUTHORS_WINDOW, KERNEL, smooth
from ckv_core.runtime.lazy_torch import Tensor, torch

MIX = Parameter(
    name="mix",
    help="R-KV: weight of importance; redundancy has the rest (paper 0.1, its code 0.07).",
    default=0.1,
    parse=number("mix", 0.0, 1.0),
)
ALIKE = Parameter(
    name="alike",
    help="R-KV: keys whose cosine is above it are alike; the newest one like an entry is not "
    "held to be redundant for its sake.",
    default=0.5,
    parse=number("alike", -1.0, 1.0),
)
_ROWS = 512  # of the similarities of one head that exist at a time


class ImportanceMinusRedundancy(Scorer):
    """mix * importance - (1 - mix) * redundancy, each a softmax over the entries."""

    name = "importance_minus_redundancy"
    parameters = (replace(AUTHORS_WINDOW, default=8), replace(KERNEL, kvpress=None), MIX, ALIKE)

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        window, mix = int(parameters["window"]), float(parameters["mix"])
        past, found = view.keys.shape[1] - window, []
        queries = view.window_queries(window).float()
        grouped = queries.reshape(view.kv_heads, -1, *queries.shape[1:])
        for own, each in zip(grouped, view.keys, strict=True):
            keys = each.float()
            logits = (own @ keys[:past].T * view.scaling).amax(0)
            importance = logits.softmax(-1).mean(0, keepdim=True)
            pooled = smooth(importance, int(parameters["kernel"]), "max")[0]
            repeated = redundancy(keys, float(parameters["alike"]))[:past]
            found.append(mix * pooled - (1 - mix) * repeated)
        return torch.stack(found)

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        group = shape.query_heads // shape.kv_heads
        rows = 3 * _ROWS + 3 * group * int(parameters["window"]) + 3 * shape.head_dim
        return 4 * rows * shape.prompt_len


def redundancy(keys: Tensor, alike: float) -> Tensor:
    """Softmax of the mean cosine of all other keys to each one, [entries] float32.

    Of what a key is alike to, the newest does not count; of a key alike to none, the first.

    Args:
        keys: [entries, head_dim] float32, oldest first.
        alike: cosine above which keys are alike.
    """
    unit = torch.nn.functional.normalize(keys, dim=-1)
    entries = len(unit)
    places, sums = torch.arange(entries, device=unit.device), unit.new_zeros(entries)
    for start in range(0, entries, _ROWS):
        rows = unit[start : start + _ROWS] @ unit.T
        at = torch.arange(len(rows), device=unit.device)
        rows[at, at + start] = 0
        newest = (places * (rows > alike)).amax(1)
        rows[at, newest] = 0
        sums += rows.sum(0)
    return (sums / entries).softmax(-1)
