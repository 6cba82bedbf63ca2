"""Which stored runs may be taken together, and their means."""

import re
from collections.abc import Sequence

from ckv_core.analysis.aggregate import aggregate_joined
from ckv_core.analysis.aggregate_runs import join
from ckv_core.analysis.pairs import compare_pairs
from ckv_core.errors import ConfigError
from ckv_core.experiment.stats import interval_note
from ckv_core.results.outcomes import cut_note
from storage.repository import is_slug
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.tables.aggregate import AggregatedRuns

MAX_RUNS = 100


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


def load_together(services: Services, text: object) -> AggregatedRuns:
    """The runs of a list of names, as far as the one who asks may read them.

    Raises:
        CkvError: a name is wrong, a run is not there, or they cannot be taken together.
    """
    return take_together([services.snapshot(slug) for slug in read_slugs(text)])


def take_together(runs: Sequence[RunSnapshot]) -> AggregatedRuns:
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
    if cut := cut_note([v for each in members for v in each.joined.variants]):
        notes.append(cut)
    return AggregatedRuns(
        model=joined.model.name if joined.model else "",
        n=joined.n,
        members=members,
        pairs=compare_pairs(joined.variants),
        notes=notes,
        scenarios=frozenset(run.result.prompt.scenario for run in runs if run.result.prompt),
    )
