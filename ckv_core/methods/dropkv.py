"""DropKV: entries by how far the attention output moves if that one entry is evicted.

With attention p, value v and output o of a query, evicting one entry moves o by p / (1 - p) times
o - v, exactly; the score sums the square over the window. Values are the cache's, before the output
projection. The authors' code has a window of 8 and averages over 11; their pull request to kvpress
(285, open) 32 and 7, as here; the formula has no smoothing (`pool=none`). Both add 1e-6 to 1 - p.
Theirs computes the distance from three sums in float32, which cancel where p is near 1; this in
float64. It is exact for one entry; of what goes together it sums up and ignores the rest. Scores of
heads share a unit, so `ada_dropkv` lets them compete, as the pull request suggests. `+critical`
multiplies by the value norm what already holds the value. Costs the window's products with all
values once more, per query head.
"""

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parts.base import SINKS, Parameters, PerEntry
from ckv_core.methods.parts.rules import ADAPTIVE
from ckv_core.methods.parts.views import LayerView
from ckv_core.methods.parts.window import AUTHORS_POOL, AUTHORS_WINDOW, GROUP, KERNEL, Window

LEAST_REST = 1e-6  # added to the attention that the other entries get


class DroppedOutput(Window):
    """Squared L2 change of the head's output if the entry goes, summed over the window.

    Smoothed with the window's own columns, as theirs, so that all entries have a score.
    """

    parameters = (AUTHORS_WINDOW, KERNEL.but(kvpress=None), AUTHORS_POOL, GROUP, SINKS)
    work = PerEntry(window=10, query_heads=3, head_dim=8)

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        group_size = view.query_heads // view.kv_heads
        found = torch.empty(view.query_heads, view.keys.shape[1], device=view.keys.device)
        for head, rows in enumerate(view.window_rows(int(parameters["window"]))):
            attention, values = rows.double(), view.values[head // group_size].double()
            outputs = attention @ values
            weights = (attention / (1 - attention + LEAST_REST)).square()
            found[head] = (
                weights.sum(0) * values.square().sum(-1)
                - 2 * ((weights.T @ outputs) * values).sum(-1)
                + weights.T @ outputs.square().sum(-1)
            ).clamp(min=0)
        return found


DROPPED_OUTPUT = DroppedOutput()

register(
    name="dropkv",
    label="DropKV",
    summary="Keeps entries whose single loss would move the window's attention output most.",
    source="Zhang et al. 2026, openreview.net/forum?id=MqfNzH3TVH",
    scorer=DROPPED_OUTPUT,
)
register(
    name="ada_dropkv",
    label="AdaKV-DropKV",
    summary="DropKV's scores; the heads of a layer share its budget as in AdaKV.",
    source="Zhang et al. 2026, openreview.net/forum?id=MqfNzH3TVH",
    scorer=DROPPED_OUTPUT,
    budget_rule=ADAPTIVE,
)
