"""SnapKV: entries that the last `window` prompt tokens attend to, the same count in every head.

The authors' class averages over 5 with a window of 64, as kvpress; their runs and this take maxima
over 7 with 32. Heads that share a KV head share their mean.
"""

from ckv_core.methods.base import register
from ckv_core.methods.parts.press import SNAPKV
from ckv_core.methods.parts.window import WINDOW_SCORER

register(
    name="snapkv",
    label="SnapKV",
    summary="Keeps what the observation window attends to, smoothed; equal budget per head.",
    source="Li et al. 2024, arXiv:2404.14469",
    scorer=WINDOW_SCORER,
    press=SNAPKV,
)
