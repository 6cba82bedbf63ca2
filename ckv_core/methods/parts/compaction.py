"""Compaction: what is generated is cut down now and then (CriticalKV, appendix K)."""

from ckv_core.base.lazy_torch import Tensor
from ckv_core.methods.base import POLICIES
from ckv_core.methods.parameters import integer
from ckv_core.methods.parts.base import Parameters, Scorer
from ckv_core.methods.parts.steps import StepPolicy, StepView

EVERY = integer("every", 256, (2, 4096)).means(
    "After so many generated tokens, again and again, the generated entries are cut down, by "
    "the variant's own score and selector; left out, they all stay."
)
TO = integer("to", 64, (1, 4096)).means(
    "With every: generated entries that each KV head keeps then, always those of the last "
    "tokens, as many as the window has."
)


class Compaction(StepPolicy):
    """Every head keeps the same number; the prompt's entries stay."""

    parameters = (EVERY, TO)

    def unfit(self, scorer: Scorer) -> str:
        return "" if scorer.needs_window else "does not score by an observation window"

    def check(self, parameters: Parameters) -> str:
        window, to, every = (int(parameters[key]) for key in ("window", "to", "every"))
        if window < to < every:
            return ""
        return (
            f"window ({window}), to ({to}) and every ({every}) must be ever larger, so that there "
            "is something to choose from; lower window or to, or raise every."
        )

    def queries(self, parameters: Parameters) -> int:
        return int(parameters["window"])

    def acts(self, step: int, parameters: Parameters) -> bool:
        return step % int(parameters["every"]) == 0

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        return view.choose(int(parameters["to"]), view.first_generated)


POLICIES[EVERY.name] = Compaction()
