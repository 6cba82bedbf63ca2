"""PyramidKV: SnapKV's scores with budgets that fall from the lowest layer to the highest."""

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.press import SNAPKV, Press
from ckv_core.methods.parts.pyramid import PYRAMID
from ckv_core.methods.parts.window import WINDOW_SCORER

METHODS.register(
    Method(
        name="pyramidkv",
        label="PyramidKV",
        summary="SnapKV's scores; lower layers get more of the budget than higher ones.",
        source="Zhang et al. 2024, arXiv:2406.02069",
        scorer=WINDOW_SCORER,
        budget_rule=PYRAMID,
        press=Press("PyramidKVPress", {**SNAPKV.arguments, "beta": "beta"}),
    )
)
