"""TOVA: at every step the entries go that the newest token attends to least.

The authors' code chooses at every step and may evict the newest token. kvpress chooses once and
keeps it (`while_generating`, `newest`).
"""

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import choice
from ckv_core.methods.parts.base import Parameters, Scorer
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.steps import StepPolicy, StepView, most_each_step
from ckv_core.methods.parts.views import LayerView

NEWEST = choice("newest", ("free", "kept"), kvpress="kept").means(
    "TOVA: whether the prompt's last token is always kept (kvpress)."
)
WHILE_GENERATING = choice("while_generating", ("evict", "grow"), kvpress="grow").means(
    "TOVA: evicts at every step, or lets the cache grow by what is generated (kvpress)."
)


class NewestQuery(Scorer):
    """Attention of the prompt's last token, one score for all heads of a layer."""

    parameters = (NEWEST,)
    non_negative = True

    def protects(self, parameters: Parameters) -> dict[str, slice]:
        return {"newest": slice(-1, None)} if parameters["newest"] == "kept" else {}

    def queries(self, parameters: Parameters) -> int:
        return 1

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        return self.evidence(view, parameters).mean(0).expand(view.kv_heads, -1)

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        return view.full_window_attention(1)


class KeepAttended(StepPolicy):
    """Each layer keeps a budget of entries, one set by the newest query's attention."""

    parameters = (WHILE_GENERATING,)
    needs_equal = True
    needs_probabilities = True
    alike = True

    def acts(self, step: int, parameters: Parameters) -> bool:
        return parameters["while_generating"] == "evict"

    def most(self, kept: int, generated: int, parameters: Parameters) -> int:
        evicts = self.acts(1, parameters)
        return most_each_step(kept, generated, parameters) if evicts else kept + generated

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        kv_heads, entries = view.positions.shape
        excess = entries - int(parameters["budget"])
        if excess <= 0 or view.probabilities is None:
            return None
        # Of equal ones the earlier is kept, so that the last in a falling order go.
        order = view.probabilities.mean(0).argsort(descending=True, stable=True)
        keep = torch.ones(entries, dtype=torch.bool, device=order.device)
        keep[order[entries - excess :]] = False
        return keep.expand(kv_heads, -1)


register(
    name="tova",
    label="TOVA",
    summary="At every step drops the token that the newest one attends to least, for all heads.",
    source="Oren et al. 2024, arXiv:2401.06104",
    scorer=NewestQuery(),
    policy=KeepAttended(),
    press=Press("TOVAPress"),
)
