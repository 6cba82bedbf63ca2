"""CAOTE: entries by how far the mean attention output moves if that one entry is evicted.

The score is DropKV's of the mean attention, without the square; with `window=1` both rank alike.
Scores are smoothed as in SnapKV.
"""

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.dropkv import LEAST_REST
from ckv_core.methods.parameters import choice
from ckv_core.methods.parts.base import SINKS, Parameters, PerEntry
from ckv_core.methods.parts.views import LayerView
from ckv_core.methods.parts.window import AUTHORS_WINDOW, GROUP, KERNEL, POOL, Window

OUTPUT = choice("output", ("attended", "mean")).means(
    "CAOTE: distance of a value to the attention's output, or to the mean of all (FastCAOTE)."
)


class OutputError(Window):
    """a / (1 - a) times the L2 distance of value and output, a the window's mean attention."""

    parameters = (
        AUTHORS_WINDOW,
        KERNEL.but(kvpress=None),
        POOL.but(kvpress=None),
        GROUP,
        OUTPUT,
        SINKS,
    )
    work = PerEntry(window=2, query_heads=6, head_dim=6)

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        found = view.full_window_attention(int(parameters["window"])).clone()
        group_size = view.query_heads // view.kv_heads
        for head, row in enumerate(found):
            attention, values = row.double(), view.values[head // group_size].double()
            output = attention @ values if parameters["output"] == "attended" else values.mean(0)
            distance = torch.linalg.vector_norm(values - output, dim=-1)
            found[head] = attention / (1 - attention + LEAST_REST) * distance
        return found


register(
    name="caote",
    label="CAOTE",
    summary="Keeps entries whose removal alone would move the mean output most.",
    source="Goel et al. 2025, arXiv:2504.14051",
    scorer=OutputError(),
)
