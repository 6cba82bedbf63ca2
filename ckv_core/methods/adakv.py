"""AdaKV: SnapKV's scores with budgets shared out among the KV heads of a layer by need."""

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.adaptive import ADAPTIVE
from ckv_core.methods.parts.press import SNAPKV, adaptive
from ckv_core.methods.parts.window import WINDOW_SCORER

METHODS.register(
    Method(
        name="adakv",
        label="AdaKV",
        summary="SnapKV's scores; heads with spread-out attention get more of the layer's budget.",
        source="Feng et al. 2024, arXiv:2407.11550",
        scorer=WINDOW_SCORER,
        budget_rule=ADAPTIVE,
        press=adaptive(SNAPKV),
    )
)
