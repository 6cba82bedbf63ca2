"""`ckv why`: which evicted entries bring back an answer that a saved run lost."""

from typing import Annotated

from typer import Argument, Option, Typer

from ckv_core.base.terminal import say
from ckv_core.cli import running
from ckv_core.cli.options import JsonOption, check_json_path, command
from ckv_core.cli.tables import print_table
from ckv_core.errors import ConfigError
from ckv_core.experiment.negatives import negatives
from ckv_core.experiment.runs import sample_request
from ckv_core.experiment.why import why_of
from ckv_core.records.events import RunResult
from ckv_core.records.records import VariantResult
from ckv_core.records.run_request import FULL
from ckv_core.records.work_requests import WhyRequest
from cli.library import found_run
from cli.run import DbOption, load_all
from storage import repository
from storage.database import Database, opened
from storage.models import SAMPLES

app = Typer()
SampleOption = Annotated[
    str, Option(metavar="ID", help="of a study; default: the first that the variant lost")
]
BudgetOption = Annotated[
    str, Option(metavar="N|N%", help="of a study; default: the largest at which it lost one")
]
EvidenceOption = Annotated[
    list[str] | None,
    Option(
        metavar="TEXT",
        help="words of the context that hold the answer; default: the sentences with the "
        "expected answer; repeatable",
    ),
]


@command(app, "why")
def _why(
    name: Annotated[str, Argument(metavar="RUN", help="as `ckv list` prints it")],
    variant: Annotated[str, Argument(help="SPEC or label, as `show` has it")],
    sample: SampleOption = "",
    budget: BudgetOption = "",
    evidence: EvidenceOption = None,
    json: JsonOption = None,
    db: DbOption = "",
) -> None:
    """Put evicted entries back, and see which bring a lost answer back."""
    check_json_path(json)
    passages = tuple(evidence or ())
    with opened(db) as database:
        found = found_run(database, name)
        if found.kind == SAMPLES:
            request = _of_sample(database, found.slug, variant, sample, budget, passages)
        else:
            run = database.read_with(repository.load_run, found.slug)
            spec = _named(run.result.variants, variant).spec
            request = WhyRequest(run=run.request, variant=spec, evidence=passages)
    request.comparison()  # refuses before a model is loaded
    loaded, _ = running.load(request)
    from ckv_core.engine.why import why

    result = RunResult()
    for event in running.followed(why(request, loaded), request):
        result.apply(event)
    found_why = why_of(result)

    def show() -> None:
        say(found_why.sentence)
        print_table(found_why.table)

    running.deliver(json, found_why.to_json, show)


def _named(variants: list[VariantResult], name: str) -> VariantResult:
    """The variant of that SPEC or label, or the only one whose SPEC begins so."""
    evicting = [each for each in variants if each.method != FULL]
    exact = [each for each in evicting if name in (each.spec, each.label)]
    found = exact or [each for each in evicting if each.spec.startswith(name)]
    if len(found) != 1:
        listed = ", ".join(each.spec for each in evicting)
        raise ConfigError(f"{name!r} names {len(found)} variants; the run has {listed}.")
    return found[0]


def _of_sample(
    database: Database,
    slug: str,
    variant: str,
    sample: str,
    budget: str,
    passages: tuple[str, ...],
) -> WhyRequest:
    """One that the variant lost, unless one is named."""
    _, reading = load_all(database, slug)
    lost = [
        each
        for each in negatives(reading)
        if variant in (each.point.variant, reading.names[each.point.variant])
        and sample in ("", each.sample.id)
        and budget in ("", each.point.budget)
    ]
    if not lost:
        known = ", ".join(dict.fromkeys(point.variant for point in reading.study.points()[1:]))
        raise ConfigError(
            f"{variant!r} lost no such sample that the full cache answers; variants: {known}."
        )
    first = [each for each in lost if each.sample == lost[0].sample][-1]  # budgets rise
    run = sample_request(reading.study, reading.samples, first.sample.id, first.point.budget or "")
    say(f"{first.sample.id} at {first.point.budget}: {first.sample.question}", to_error=True)
    return WhyRequest(run=run, variant=first.point.spec, evidence=passages or first.sample.evidence)
