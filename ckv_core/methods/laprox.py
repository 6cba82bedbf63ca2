"""LaProx: one choice over all layers and heads, by what an entry adds to its layer's output.

Window and smoothing are those of SnapKV: of the paper only the abstract was read. All layers must
be read before anything is evicted.
"""

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parts.base import SINKS, Parameters, PerEntry
from ckv_core.methods.parts.rules import TopScoresOfAll
from ckv_core.methods.parts.views import LayerView
from ckv_core.methods.parts.window import AUTHORS_POOL, AUTHORS_WINDOW, GROUP, KERNEL, Window


class OutputShare(Window):
    """L2 norm of an entry's column of window attention times that of V W_O, as layers' shares."""

    parameters = (AUTHORS_WINDOW, KERNEL.but(kvpress=None), AUTHORS_POOL, GROUP, SINKS)
    needs_norms = True
    norm_order = 2
    work = PerEntry(window=2, query_heads=4)

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        columns = self.evidence(view, parameters)
        products = columns * view.value_norms(2)[:, : columns.shape[1]]
        scores = self.group(self.smooth(products, parameters), view.kv_heads, parameters)
        return scores / scores.sum().clamp(min=torch.finfo(scores.dtype).tiny)

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        window = int(parameters["window"])
        shape = view.query_heads, view.keys.shape[1] - window
        columns = torch.empty(shape, device=view.keys.device)
        for head, rows in enumerate(view.window_rows(window)):
            columns[head] = torch.linalg.vector_norm(rows[:, : columns.shape[1]], dim=0)
        return columns


register(
    name="laprox",
    label="LaProx",
    summary="Window attention times projected values; the heads of all layers share one budget.",
    source="Mai and Kim 2026, arXiv:2605.07234",
    scorer=OutputShare(),
    budget_rule=TopScoresOfAll(),
)
