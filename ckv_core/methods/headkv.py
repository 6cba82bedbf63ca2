"""HeadKV: SnapKV's scores; heads that find needles get more of the budget, in all layers.

The authors publish tables for two models; for any other a probe makes one (`engine/needle.py`).
Their formula and their words disagree on beta: `beta_sign`. Their code keeps a set for each query
head; here heads that share a KV head share its mean. Theirs rounds and may leave entries over;
here totals are exact.
"""

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.head_shares import HeadShares
from ckv_core.methods.parts.window import WINDOW_SCORER

METHODS.register(
    Method(
        name="headkv",
        label="HeadKV",
        summary="SnapKV's scores; heads that find needles, by a probe, get more of the budget.",
        source="Fu et al. 2024, arXiv:2410.19258",
        scorer=WINDOW_SCORER,
        budget_rule=HeadShares(),
    )
)
