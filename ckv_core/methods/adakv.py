"""AdaKV: SnapKV's scores with budgets shared out among the KV heads of a layer by need.

The authors' code mixes a share of equal budgets into all, kvpress grants that share as a floor of
the whole budget, window included (`safeguard_rule`): other budgets under one name. The share is 0.5
in the authors' README, 0.2 in their runs, the paper and kvpress. Theirs rounds each head, so that a
layer's total drifts by a few entries; here totals are exact. Costs SnapKV's scores and a sort of
all heads of a layer together; heads then differ in length.
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
