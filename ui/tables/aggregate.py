"""Several runs taken together: the means of their variants, and how a reader calls them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ckv_core.analysis import sweep as sweep_reading
from ckv_core.analysis.aggregate import Aggregate
from ckv_core.analysis.chain import COVERED
from ckv_core.analysis.pairs import Pair
from ckv_core.analysis.regimes import Regimes, regimes_of
from ckv_core.methods.parameters import Budget
from ckv_core.request.identity import NOT_RECORDED
from ckv_core.request.variants import written_parameters
from ckv_core.results.quantities import QUANTITIES
from ui.looks.palette import Look, looks_of
from ui.tables.measured import unit_name


@dataclass(frozen=True, slots=True)
class Figure:
    """How a reader calls one figure of `Aggregate.figures`.

    Attributes:
        is_share: shown as percent.
        is_covered: of the heads with sigma over 0.5 alone.
    """

    key: str
    label: str
    unit: str
    is_share: bool = False
    is_covered: bool = False


# In the table, and with a chart of their own; of a prompt, averaged over prompts.
MAIN_FIGURES = (
    *(
        Figure(f.key, f.label, unit_name(f.unit), is_share=f.unit == "1")
        for f in sweep_reading.FIGURES.values()
    ),
    Figure(
        "improved_heads",
        "Heads closer to the full cache than without CriticalKV",
        "share",
        is_share=True,
    ),
)
# In a chart with a choice; a mean over heads, layers or steps, averaged over prompts.
DIAGNOSTICS_FIGURES = (
    Figure("tightness", "Tightness: head L1 / theta", "ratio"),
    Figure("group_tightness", "Tightness per KV head: group L1 / theta", "ratio"),
    Figure("oracle_over_half", "Oracle sigma over 0.5", "share", is_share=True),
    *(Figure(key, label, "L1", is_covered=True) for key, label in COVERED.items()),
    *(
        Figure(q.name, q.label, unit_name(q.unit))
        for q in QUANTITIES.values()
        if q.name not in COVERED
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeveralRuns:
    """Runs of one model over their prompts.

    Attributes:
        model: of all runs.
        n: prompts that differ.
        members: one per variant, the full cache too.
        pairs: variants against their bases and against the full cache, prompt by prompt.
        notes: sentences on what limits the figures.
        scenarios: of the prompts.
    """

    model: str
    n: int
    members: list[Aggregate]
    pairs: list[Pair]
    notes: list[str]
    scenarios: frozenset[str] = frozenset()

    @property
    def looks(self) -> dict[int, Look]:
        """By the place of the settings."""
        of_place = {each.joined.place: each.joined.variants[0] for each in self.members}
        return dict(zip(of_place, looks_of(of_place.values()), strict=True))

    @property
    def regimes(self) -> Regimes:
        """Of the members, in their order."""
        return regimes_of([m.joined.variants[0].method for m in self.members], self.scenarios)

    @property
    def marks(self) -> dict[int, str]:
        """The regime by the place of the settings, where there are both."""
        pairs = zip(self.members, self.regimes.marks, strict=True)
        return {member.joined.place: mark for member, mark in pairs}

    def known(self, figures: Sequence[Figure]) -> list[Figure]:
        """Those that any variant has."""
        return [f for f in figures if any(f.key in m.figures for m in self.members)]


def settings_text(spec: str, alpha: float | None, budget: Budget | None = None) -> str:
    """What tells a variant from others of its method; its alpha also where no SPEC writes it."""
    parameters = written_parameters(spec)
    parameters.pop("budget", None)
    if alpha is not None:
        parameters.pop("alpha", None)
        parameters = {"alpha": f"{alpha:g}"} | parameters
    if budget is not None:
        parameters = {"budget": str(budget)} | parameters
    said = {
        key: "not recorded" if text == NOT_RECORDED else text for key, text in parameters.items()
    }
    return ", ".join(f"{key} {text}" for key, text in said.items())
