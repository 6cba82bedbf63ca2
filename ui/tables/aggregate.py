"""Several runs taken together: the means of their variants, and how a reader calls them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ckv_core.analysis.aggregate import Aggregate
from ckv_core.analysis.aggregate_runs import JoinedVariant
from ckv_core.analysis.pairs import Pair
from ckv_core.analysis.regimes import Regimes, regimes_of
from ckv_core.methods.parameters import Budget
from ckv_core.request.identity import NOT_RECORDED
from ckv_core.request.variants import written_parameters
from ckv_core.results.figures import figures_in
from ckv_core.results.quantities import Figure
from ui.looks.palette import Look, looks_of

# In the table, and with a chart of their own; of a prompt, averaged over prompts.
MAIN_FIGURES = tuple(figures_in("means").values())
# In a chart with a choice; a mean over heads, layers or steps, averaged over prompts.
DIAGNOSTICS_FIGURES = tuple(
    sorted(figures_in("choice").values(), key=lambda figure: figure.group == "forced")
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AggregatedRuns:
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


def variant_name(variant: JoinedVariant, *, with_budget: bool = True) -> str:
    """Its label with what tells it from others of its method."""
    budget = variant.budget if with_budget else None
    settings = settings_text(variant.spec, variant.alpha, budget)
    return ", ".join(filter(None, (variant.variants[0].label, settings)))


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
