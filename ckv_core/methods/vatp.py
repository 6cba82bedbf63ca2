"""VATP: H2O's choice with each entry's accumulated attention times the size of its value.

Here it chooses once, at the end of the prompt, and keeps what is generated; the authors' code goes
on choosing, with H2O's or Scissorhands' attention. The size is of the value itself: CriticalKV
takes it after the output projection. The first tokens are kept, for their values are small; they
lie in the half of the budget that the newest entries leave. Where they do not fit into it, the
authors' code keeps as many as do, and this all of them, at the expense of the newest. The
authors' code counts the token to come among these, this only the prompt's.
"""

from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor
from ckv_core.methods.base import register
from ckv_core.methods.h2o import Accumulated, HalfRecent
from ckv_core.methods.parameters import Parameter
from ckv_core.methods.parts.base import SINKS, Parameters
from ckv_core.methods.parts.views import LayerView


class ValueAware(Accumulated):
    """Accumulated attention times the L1 norm of the value; the first tokens are kept."""

    parameters: ClassVar[tuple[Parameter, ...]] = (SINKS.but(default=20),)

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        return super().scores(view, parameters) * view.values.float().abs().sum(-1)


register(
    name="vatp",
    label="VATP",
    summary="Newest half; for the rest the most attention so far times the value's L1 norm.",
    source="Guo et al. 2024, arXiv:2406.12335",
    scorer=ValueAware(),
    selector=HalfRecent(),
)
