"""LagKV: entries that stand out from the tokens after them; it needs no query.

The authors sum the scores of keys and values, kvpress averages them: the same order. The authors
keep a share of each partition and the tail besides; here, as in kvpress, the tail is inside the
budget, so a budget below the tail keeps the newest tokens only.
"""

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.lag_relative import LAG_RELATIVE
from ckv_core.methods.parts.partitions import PARTITIONS
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.shares import UNIFORM

METHODS.register(
    Method(
        name="lagkv",
        label="LagKV",
        summary="Keeps in each partition what stands out from the next one, and the last tokens.",
        source="Liang et al. 2025, arXiv:2504.04704",
        scorer=LAG_RELATIVE,
        budget_rule=UNIFORM,
        selector=PARTITIONS,
        press=Press("LagKVPress", {"n_sink": "sinks", "lag_size": "lag"}),
    )
)
