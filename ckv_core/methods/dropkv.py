"""DropKV: entries by how far the attention output moves if that one entry is evicted.

Evicting one entry moves the output by p / (1 - p) times (o - v); the score sums the square over the
window. Window 32 and the mean over 7 are those of the authors' pull request to kvpress; their own
code has 8 and 11.
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
    summary="Keeps entries whose removal alone would move the window's output most.",
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
