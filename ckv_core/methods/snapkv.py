"""SnapKV: entries that the last `window` prompt tokens attend to, the same count in every head.

The authors' class smooths by averages of 5 with a window of 64, their runs by maxima of 7 with 32,
as the paper and this; kvpress has the class's (`preset=kvpress`). Their code repeats keys and
chooses for each query head, so its cache is larger by the group; here, as in kvpress, the heads of
a group share one set by their mean. Where AdaKV's and PyramidKV's authors keep grouped keys, they
average a group before they take maxima, this afterwards: of two example texts 4 % of the entries
kept at a tenth are others, 3 % at half. Costs the attention of the window's queries, once more than
the prefill has it, and one sort per head.
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
