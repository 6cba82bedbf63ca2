"""AdaKV: SnapKV's scores with budgets shared out among the KV heads of a layer by need.

The authors' code mixes a share of equal budgets into all; kvpress makes that share a floor of the
whole budget (`safeguard_rule`). Here each layer's total is exact.
"""

from ckv_core.methods.base import register
from ckv_core.methods.parts.press import SNAPKV, adaptive
from ckv_core.methods.parts.rules import ADAPTIVE
from ckv_core.methods.parts.window import WINDOW_SCORER

register(
    name="adakv",
    label="AdaKV",
    summary="SnapKV's scores; heads with spread-out attention get more of the layer's budget.",
    source="Feng et al. 2024, arXiv:2407.11550",
    scorer=WINDOW_SCORER,
    budget_rule=ADAPTIVE,
    press=adaptive(SNAPKV),
)
