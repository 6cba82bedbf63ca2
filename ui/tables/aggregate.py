"""Several runs taken together: which may be, and the means of their variants. No Gradio."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ckv_core.analysis import sweep as sweep_reading
from ckv_core.analysis.aggregate import Aggregate, aggregate_joined
from ckv_core.analysis.aggregate_runs import join
from ckv_core.analysis.chain import COVERED
from ckv_core.analysis.identity import NOT_RECORDED
from ckv_core.analysis.intervals import interval_note
from ckv_core.analysis.pairs import Pair, compare_pairs
from ckv_core.analysis.regimes import Regimes, regimes_of
from ckv_core.errors import ConfigError
from ckv_core.methods.parameters import Budget
from ckv_core.request.variants import written_parameters
from ckv_core.results.quantities import QUANTITIES
from ui.looks.palette import Look, looks_of
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.services.slugs import is_slug
from ui.tables.measured import unit_name

MAX_RUNS = 100


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


def read_slugs(text: object) -> list[str]:
    """The names of a list, each once.

    Raises:
        ConfigError: one cannot name a run, or there are too many.
    """
    parts = re.split(r"[\s,]+", text) if isinstance(text, str) else []
    slugs = list(dict.fromkeys(filter(None, parts)))
    if len(slugs) > MAX_RUNS:
        raise ConfigError(f"{len(slugs)} runs are too many; take up to {MAX_RUNS} together.")
    for slug in slugs:
        if not is_slug(slug):
            raise ConfigError(f"{slug[:40]!r} is not the name of a run.")
    return slugs


def load_together(services: Services, text: object) -> SeveralRuns:
    """The runs of a list of names, as far as the one who asks may read them.

    Raises:
        CkvError: a name is wrong, a run is not there, or they cannot be taken together.
    """
    return take_together([services.snapshot(slug) for slug in read_slugs(text)])


def take_together(runs: Sequence[RunSnapshot]) -> SeveralRuns:
    """Finished runs over their prompts, whichever of them each variant is in.

    Raises:
        ConfigError: says why the runs cannot be taken together.
    """
    if len(runs) < 2:
        raise ConfigError("Choose at least two runs to take together.")
    for run in runs:
        if run.state != "done" or run.result.model is None:
            raise ConfigError(f"Run {run.slug} is not done; leave it out or wait for its end.")
    joined = join([run.result for run in sorted(runs, key=lambda run: run.created_at)])
    notes = list(joined.notes)
    if note := interval_note(joined.n, joined.fewest):
        notes.append(note)
    if len({run.request.max_new_tokens for run in runs}) > 1:
        notes.append("The runs generate different numbers of tokens, which moves agreement.")
    members = aggregate_joined(joined)
    if not any(each.joined.place for each in members):
        raise ConfigError("The runs have the full cache alone; add methods to compare with it.")
    notes += dict.fromkeys(member.alpha_note for member in members if member.alpha_note)
    if cut := sweep_reading.cut_note([v for each in members for v in each.joined.variants]):
        notes.append(cut)
    return SeveralRuns(
        model=joined.model.name if joined.model else "",
        n=joined.n,
        members=members,
        pairs=compare_pairs(joined.variants),
        notes=notes,
        scenarios=frozenset(run.result.prompt.scenario for run in runs if run.result.prompt),
    )
