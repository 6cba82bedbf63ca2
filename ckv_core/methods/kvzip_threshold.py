"""KVzip+ with a threshold: what is kept follows from the text, and the budget is only a bound.

KVzap trains a small network to predict the logarithm of KVzip+'s scores, and evicts what lies below
a threshold (-6 to -3 there, 0.002 to 0.05 of the score itself), as kvpress's DMSPress does with any
scorer; here the score itself is measured, for no such network is at hand. The newest tokens are
never evicted: 32, theirs 128, or short prompts would keep little else. Where more lies above the
threshold than the budget allows, the best of all heads and layers stay, as in KVzip; with
`budget=100%` the threshold alone decides, up to one entry of each head.
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
