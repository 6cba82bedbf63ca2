"""R-KV: while generating, what is attended to and is not said many times over.

The authors' code takes the largest logit of a KV head's query heads and then the softmax over the
entries before the window, as here; its class and its command line differ in a share of alike keys
to spare, which neither uses by default: one, the newest, is spared. It evicts every 128 tokens; its
weight of importance is 0.07, the paper's 0.1. Costs all pairs of keys at each eviction.
"""

from __future__ import annotations

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parameters import Parameter, integer
from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.redundancy import ImportanceMinusRedundancy
from ckv_core.methods.parts.shares import UNIFORM
from ckv_core.methods.parts.steps import StepPolicy, StepView
from ckv_core.runtime.lazy_torch import Tensor

BUFFER = Parameter(
    name="buffer",
    help="R-KV: generated tokens after which the cache is cut down to the budget again.",
    default=128,
    parse=integer("buffer", 1, 4096),
)


class CutBuffer(StepPolicy):
    """After each full buffer, prompt and generated entries together are cut to the budget."""

    name = "cut_buffer"
    needs_equal = True
    parameters = (BUFFER,)
    reads = ("window",)

    def check(self, parameters: Parameters) -> str:
        window, buffer = int(parameters["window"]), int(parameters["buffer"])
        if window <= buffer:
            return ""
        return f"buffer ({buffer}) must be at least the window ({window}), whose queries score."

    def queries(self, parameters: Parameters) -> int:
        return int(parameters["window"])

    def acts(self, step: int, parameters: Parameters) -> bool:
        return step % int(parameters["buffer"]) == 0

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        budget = int(parameters["budget"])
        return view.choose(budget, 0) if view.positions.shape[1] > budget else None


METHODS.register(
    Method(
        name="r_kv",
        label="R-KV",
        summary="At the prompt's end and now and then: attended to, and unlike other keys.",
        source="Cai et al. 2025, arXiv:2505.24133",
        scorer=ImportanceMinusRedundancy(),
        budget_rule=UNIFORM,
        policy=CutBuffer(),
    )
)
