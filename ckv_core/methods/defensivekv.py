"""DefensiveKV: keeps what any query of the window asked for, not what they asked for on average."""

from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.mass import MASS_SELECTOR, MassThenScores, MassThenScoresOfAll
from ckv_core.methods.parts.worst_case import WORST_CASE

METHODS.register(
    Method(
        name="defensivekv",
        label="DefensiveKV",
        summary="Keeps most of each head's attention, then the worst case over window and group.",
        source="Feng et al. 2025, arXiv:2510.13334",
        scorer=WORST_CASE,
        budget_rule=MassThenScores(),
        selector=MASS_SELECTOR,
    )
)
METHODS.register(
    Method(
        name="layer_defensivekv",
        label="LayerDefensiveKV",
        summary="DefensiveKV's scores and first stage; the heads of all layers share one budget.",
        source="Feng et al. 2025, arXiv:2510.13334",
        scorer=WORST_CASE,
        budget_rule=MassThenScoresOfAll(),
        selector=MASS_SELECTOR,
    )
)
