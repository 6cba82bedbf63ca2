"""SnapKV: entries that the last `window` prompt tokens attend to, the same count in every head.

The authors' runs and this method have a window of 32 and take the maximum over 7 neighbours. The
default of their class and of kvpress is a window of 64 and the mean over 5. Query heads that share
a KV head are averaged.
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
