"""Several runs taken together: which may be, and the variants that all of them have. No Gradio."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ckv_core import sweep_reading
from ckv_core.errors import ConfigError
from ckv_core.events import RunResult
from ckv_core.metrics.intervals import Aggregate, aggregate, interval_note
from ckv_core.quantities import QUANTITIES
from ui.charts.measured import unit_name
from ui.live_runs import RunSnapshot
from ui.services import Services
from ui.slugs import is_slug

MAX_RUNS = 100


@dataclass(frozen=True, slots=True)
class Figure:
    """How a reader calls one figure of `Aggregate.figures`.

    Attributes:
        is_share: shown as percent.
    """

    key: str
    label: str
    unit: str
    is_share: bool = False


# In the table, and with a chart of their own; of a prompt, averaged over prompts.
MAIN_FIGURES = (
    *(
        Figure(f.key, f.label, unit_name(f.unit), is_share=f.unit == "1")
        for f in sweep_reading.FIGURES.values()
    ),
    Figure("improved_heads", "Better heads", "share", is_share=True),
)
# In a chart with a choice; a mean over heads, layers or steps, averaged over prompts.
LABORATORY_FIGURES = (
    Figure("tightness", "Tightness: head L1 / theta", "ratio"),
    Figure("group_tightness", "Tightness per KV head: group L1 / theta", "ratio"),
    Figure("oracle_over_half", "Oracle sigma over 0.5", "share", is_share=True),
    *(Figure(q.name, q.label, unit_name(q.unit)) for q in QUANTITIES.values()),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeveralRuns:
    """What the runs have in common.

    Attributes:
        model: of all runs.
        n: prompts that differ.
        members: one per variant that every run has, the full cache left out.
        places: of each member in the first run, whose colours and markers are kept.
        notes: sentences on what limits the figures.
    """

    model: str
    n: int
    members: list[Aggregate]
    places: list[int]
    notes: list[str]

    def known(self, figures: Sequence[Figure]) -> list[Figure]:
        """Those that any variant has."""
        return [f for f in figures if any(f.key in m.figures for m in self.members)]


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
    """Finished runs over their prompts, per variant that all of them have.

    Raises:
        ConfigError: says why the runs cannot be taken together.
    """
    _check(runs)
    distinct, notes = _distinct(runs)
    specs = _common_specs(distinct)
    n = len(distinct)
    if note := interval_note(n):
        notes.append(note)
    if len({run.request.scenario for run in distinct}) > 1:
        notes.append("The runs mix the scenarios regular and context-only.")
    if len({run.request.max_new_tokens for run in distinct}) > 1:
        notes.append("The runs generate different numbers of tokens, which moves agreement.")
    members = aggregate([_with_only(run.result, specs) for run in distinct])
    notes += dict.fromkeys(member.alpha_note for member in members if member.alpha_note)
    first = distinct[0].result
    at = {variant.spec: place for place, variant in enumerate(first.variants)}
    return SeveralRuns(
        model=first.model.name if first.model else "",
        n=n,
        members=members,
        places=[at[member.spec] for member in members],
        notes=notes,
    )


def _check(runs: Sequence[RunSnapshot]) -> None:
    if len(runs) < 2:
        raise ConfigError("Choose at least two runs to take together.")
    for run in runs:
        if run.state != "done" or run.result.model is None:
            raise ConfigError(f"Run {run.slug} is not done; leave it out or wait for its end.")
    models = {(run.result.model.name, run.result.model.sha256) for run in runs if run.result.model}
    if len(models) > 1:
        names = ", ".join(sorted({name for name, _ in models}))
        raise ConfigError(
            f"The runs are of {len(models)} different models ({names}); their figures have no "
            "common scale. Choose runs of one model."
        )


def _distinct(runs: Sequence[RunSnapshot]) -> tuple[list[RunSnapshot], list[str]]:
    """The first run of each prompt, and a note on those left out."""
    first: dict[tuple[int, ...], RunSnapshot] = {}
    for run in runs:
        first.setdefault(run.result.prompt.token_ids if run.result.prompt else (), run)
    left = len(runs) - len(first)
    if not left:
        return list(first.values()), []
    note = f"{left} of {len(runs)} runs repeat a prompt of another run and are left out."
    return list(first.values()), [note]


def _common_specs(runs: Sequence[RunSnapshot]) -> list[str]:
    common = set.intersection(*({v.spec for v in run.result.variants} for run in runs))
    specs = [v.spec for v in runs[0].result.variants if v.spec in common and v.method != "full"]
    if not specs:
        raise ConfigError(
            "The runs have no variant in common; run the same methods with the same budget, alpha "
            "and knobs on each prompt."
        )
    return specs


def _with_only(result: RunResult, specs: Sequence[str]) -> RunResult:
    by_spec = {variant.spec: variant for variant in result.variants}
    return replace(result, variants=[by_spec[spec] for spec in specs])
