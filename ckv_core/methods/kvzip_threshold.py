"""KVzip+ with a threshold: what is kept follows from the text, and the budget is only a bound.

KVzap trains a network to predict the logarithm of KVzip+'s scores and evicts what lies below -6 to
-3 (0.002 to 0.05). Here the score itself is measured. A smaller budget keeps the best of all heads
and layers; with `budget=100%` the threshold alone decides.
"""

from ckv_core.methods.base import register
from ckv_core.methods.kvzip import LEAD, PLUS, REPEAT, Repeated
from ckv_core.methods.parts.base import RECENT, SINKS
from ckv_core.methods.parts.rules import Threshold


class RepeatedRecent(Repeated):
    """KVzip's scores; the newest entries are kept besides."""

    parameters = (
        REPEAT,
        LEAD,
        PLUS.but(default="on"),
        SINKS.but(default=4),
        RECENT.but(default=32),
    )


register(
    name="kvzip_threshold",
    label="KVzip+ threshold",
    summary="Keeps what KVzip+ scores above a threshold; the budget is the most that it may keep.",
    source="Jegou and Jeblick 2026, arXiv:2601.07891",
    scorer=RepeatedRecent(),
    budget_rule=Threshold(),
)
