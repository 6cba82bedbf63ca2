"""CAKE: attention and how it shifts within the window; layers share the budget by both.

The authors search tau1 and tau2 per model and budget (1.6 and 0.4 for Llama-3.1-8B at 1,024) and
take 1 elsewhere. They also evict while generating, and round layer budgets in another order.
"""

from __future__ import annotations

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parameters import Parameter, number
from ckv_core.methods.parts.base import SINKS, Parameters
from ckv_core.methods.parts.preferences import PREFERENCES
from ckv_core.methods.parts.views import LayerView, PromptShape
from ckv_core.methods.parts.window import (
    AUTHORS_KERNEL,
    AUTHORS_POOL,
    AUTHORS_WINDOW,
    GROUP,
    Window,
)
from ckv_core.runtime.lazy_torch import Tensor

GAMMA = Parameter(
    name="gamma",
    help="CAKE: weight of the variance over the window's queries beside their mean.",
    default=200.0,
    parse=number("gamma", 0.0, 1e6),
)


class MeanAndVariance(Window):
    """Mean plus gamma times the variance over the window, smoothed, then grouped."""

    name = "mean_and_variance"
    parameters = (AUTHORS_WINDOW, AUTHORS_KERNEL, AUTHORS_POOL, GROUP, GAMMA, SINKS)

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        evidence = view.window_attention(int(parameters["window"])).clone()
        for head, rows in enumerate(view.window_rows(int(parameters["window"]))):
            spread = rows[:, : evidence.shape[1]].var(0) if len(rows) > 1 else 0
            evidence[head] += float(parameters["gamma"]) * spread
        return evidence

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        return 4 * (2 * int(parameters["window"]) + 2 * shape.query_heads) * shape.prompt_len


METHODS.register(
    Method(
        name="cake",
        label="CAKE",
        summary="Window attention and its variance; layers share the budget by spread and shift.",
        source="Qin et al. 2025, arXiv:2503.12491",
        scorer=MeanAndVariance(),
        budget_rule=PREFERENCES,
    )
)
