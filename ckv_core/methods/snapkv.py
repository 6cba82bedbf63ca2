"""SnapKV: entries that the last `window` prompt tokens attend to, the same count in every head."""

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.press import SNAPKV
from ckv_core.methods.parts.shares import UNIFORM
from ckv_core.methods.parts.window import WINDOW_SCORER

METHODS.register(
    Method(
        name="snapkv",
        label="SnapKV",
        summary="Keeps what the observation window attends to, smoothed; equal budget per head.",
        source="Li et al. 2024, arXiv:2404.14469",
        scorer=WINDOW_SCORER,
        budget_rule=UNIFORM,
        press=SNAPKV,
    )
)
