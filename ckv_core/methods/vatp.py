"""VATP: H2O's choice with each entry's accumulated attention times the size of its value.

The authors' code chooses again while it generates. This method chooses once, at the prompt's end.
It multiplies by the value itself, CriticalKV by the value after the output projection.
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
    summary="Keeps the newest half, then what has most attention so far times value norm (L1).",
    source="Guo et al. 2024, arXiv:2406.12335",
    scorer=ValueAware(),
    selector=HalfRecent(),
)
