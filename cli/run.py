"""`ckv run FILE.yaml`: many samples, methods and budgets, stored in the app's database."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

from ckv_core.base.terminal import say, show_line
from ckv_core.cli import running
from ckv_core.cli.options import JsonOption, check_json_path, command, read_text
from ckv_core.cli.tables import print_columns, print_points, print_table
from ckv_core.errors import CkvError, ConfigError
from ckv_core.experiment import sentences
from ckv_core.experiment.cluster import Cluster
from ckv_core.experiment.data import read_file, read_samples, samples_of_runs
from ckv_core.experiment.harness import LM_EVAL, harness_samples
from ckv_core.experiment.study import Key, Sample
from ckv_core.experiment.study_file import read_study
from ckv_core.experiment.study_runner import open_samples, part_of, run_study
from ckv_core.records.grid import cost, duration
from ckv_core.records.run_request import DEFAULT_MODEL, RunRequest
from storage import repository
from storage.database import Database, opened
from storage.recorder import Recorder
from storage.records import StoredRun

if TYPE_CHECKING:
    from ckv_core.experiment.points import Row
    from ckv_core.experiment.reading import Reading
    from ckv_core.experiment.study_engine import LocalEngine

LONG_S = 1800.0  # a study that takes longer asks first
STOPPING = (
    "\nStopping: the samples that are begun are finished and stored. Ctrl-C again loses them."
)
STOPPED = "Stopped by Ctrl-C: {:,} of {:,} samples are stored. The same command runs the rest."


app = Typer()
DbOption = Annotated[
    str,
    Option(metavar="URL", envvar="CKV_DATABASE_URL", help="database; default: SQLite in CKV_HOME"),
]
ShardOption = Annotated[
    str,
    Option(
        metavar="I/N",
        help="only every Nth sample, from the Ith on, so that machines can share a file",
    ),
]
ClusterOption = Annotated[
    str,
    Option(
        metavar="ADDRESS",
        envvar="CKV_CLUSTER",
        help="run on Ray: local, auto or an address; default: this process alone",
    ),
]
WorkersOption = Annotated[
    int | None,
    Option(metavar="N", min=1, help="most workers on the cluster; default: as many as fit"),
]
ThreadsOption = Annotated[int, Option(metavar="N", min=1, help="CPUs of a worker without a GPU")]
YesOption = Annotated[bool, Option("--yes", help="do not ask before a long run")]


@command(app, "run", "device")
def _run(
    options: dict[str, Any],
    file: Annotated[
        str, Argument(metavar="FILE.yaml", help="docs/how-to/your_data.md describes it")
    ],
    shard: ShardOption = "1/1",
    cluster: ClusterOption = "",
    workers: WorkersOption = None,
    threads: ThreadsOption = 1,
    yes: YesOption = False,
    json: JsonOption = None,
    db: DbOption = "",
) -> int:
    """Run a file of many samples x methods x budgets, or what is left of it."""
    study = read_study(read_text(file, "study"), os.environ.get("CKV_MODEL") or DEFAULT_MODEL)
    number, of = _shard(shard)
    check_json_path(json)
    with ExitStack() as stack:
        database = stack.enter_context(opened(db))
        samples, store = _given_samples(study, file, database), Recorder(database)
        place = (cluster, options["device"], workers, threads)
        engine = stack.enter_context(_engine(study, *place))
        if samples is None:
            samples = engine.samples(study)
        slug = store.save(study, samples)
        stored = database.read_with(repository.load_samples, slug)
        part = part_of(stored, number, of)  # in the stored order, which is random
        standing = database.read_with(repository.done_keys, slug)
        seconds = _show_cost(study, part, standing, engine)
        if not yes and seconds >= LONG_S and sys.stdin.isatty():  # somebody confirms a long one
            say("Run it? y for yes: ", to_error=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                say("Nothing was run.", to_error=True)
                return 1
        done = 0
        with _stopped_by_ctrl_c(engine, lambda: STOPPED.format(done, len(part))):
            for progress in run_study(
                engine,
                study,
                part,
                standing,
                lambda results: store.commit(slug, results),
                lambda model, versions: store.served_by(slug, model, dict(versions)),
            ):
                done, left = progress.done, progress.seconds_left
                rest = "" if left is None else f", about {duration(left)} left"
                show_line(f"{done:,} of {len(part):,} samples{rest}")
        running.clear_progress()
        store.end(slug)
        show = partial(print_study, database, slug, file="its file" if file == "-" else file)
        running.deliver(json, partial(study_json, database, slug), show)
        ids = {sample.id for sample in part}
        results = database.read_with(repository.load_results, slug)
        failed = any(result.state == "failed" for result in results if result.sample in ids)
        return 1 if failed or not any(result.state == "done" for result in results) else 0


@contextmanager
def _stopped_by_ctrl_c(
    engine: "Cluster | LocalEngine", sentence: Callable[[], str]
) -> Iterator[None]:
    """The first Ctrl-C lets this process end the samples that it began, the second stops at once.

    Raises:
        CkvError: it was stopped; `sentence` gives its words.
    """
    is_ending = False

    def end(*_: object) -> None:
        nonlocal is_ending
        if is_ending or isinstance(engine, Cluster):
            raise KeyboardInterrupt
        is_ending = engine.is_ending = True
        say(STOPPING, to_error=True)

    former = signal.signal(signal.SIGINT, end)
    try:
        yield
        if is_ending:
            end()
    except KeyboardInterrupt:
        raise CkvError(sentence()) from None
    finally:
        signal.signal(signal.SIGINT, former)


@contextmanager
def _engine(
    study: RunRequest, address: str, device: str, workers: int | None, threads: int
) -> "Iterator[Cluster | LocalEngine]":
    """This process with the model, or a cluster."""
    if address:
        with closing(Cluster(address, device, workers, threads)) as cluster:
            yield cluster
        return
    from ckv_core.experiment.study_engine import LocalEngine

    engine = LocalEngine(study.model, device, running.show_step)
    running.clear_progress()
    yield engine


def _given_samples(study: RunRequest, path: str, database: Database) -> tuple[Sample, ...] | None:
    """Of its data file (beside the study file), of runs or lm_eval; None for a task of ours."""
    if "runs" in study.data:
        return samples_of_runs(database.read_with(repository.load_requests, study.data["runs"]))
    if LM_EVAL in study.data:
        show_line("lm_eval reads the list of its tasks, which takes some 20 s")
        samples = harness_samples(study)
        running.clear_progress()
        return samples
    if "file" not in study.data:
        return None
    file = (Path() if path == "-" else Path(path).parent) / study.data["file"]
    return read_samples(read_file(file), file.name, study.data.get("columns"))


def _shard(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of) <= 10_000):
        raise ConfigError(f"--shard {text!r} must read I/N with I from 1 to N, for example 1/4.")
    return int(number), int(of)


def _show_cost(
    study: RunRequest,
    samples: Sequence[Sample],
    standing: set[Key],
    engine: "Cluster | LocalEngine",
) -> float:
    """Say what is to be computed; returns its seconds."""
    todo = open_samples(study, samples, standing)
    if not todo:
        say("Nothing is left to run.", to_error=True)
        return 0.0
    sizes = engine.sizes(study, [sample for sample, _ in todo])
    known = [(sizes[s.id].tokens, len(points)) for s, points in todo if s.id in sizes]
    needed = cost(study, known, parameters=engine.parameters)
    seconds = needed.seconds / engine.workers
    each = f" for each of {engine.workers} workers" if engine.workers > 1 else ""
    say(
        f"{needed.samples:,} samples, {needed.points:,} results to come; {needed.tokens:,} prompt "
        f"tokens, at most {needed.longest:,} each; about {duration(seconds)}, going by the default "
        f"model on two CPU cores{each}. Ctrl-C stops after the samples that are begun; the same "
        "command runs the rest.",
        to_error=True,
    )
    return seconds


# --- what a study says ------------------------------------------------------------------


def load_all(database: Database, slug: str) -> "tuple[StoredRun, Reading]":
    """A run of many samples, and the same with its samples and results, of one moment."""
    from ckv_core.experiment.reading import Reading  # scipy takes a second

    with database.read() as session:
        stored, samples = repository.load_study(session, slug), repository.load_samples
        results = repository.load_results(session, slug)
        return stored, Reading(stored.request, samples(session, slug), results, slug, stored.facts)


def study_json(database: Database, slug: str, *, with_data: bool = False) -> dict[str, Any]:
    """The whole study as JSON values; see `ckv_core.experiment.export`."""
    from ckv_core.experiment.export import export

    _, reading = load_all(database, slug)
    return export(reading, with_data=with_data)


def print_study(
    database: Database,
    slug: str,
    baseline: str = "",
    *,
    file: str = "its file",
    every: bool = False,
) -> None:
    """The decision, what each point came to, what limits it, and the next step.

    `baseline`: in place of the study's own. `file`: what a reader calls the study's. `every`: also
    the tables of all metrics, tasks and negatives, and what failed.
    """
    from ckv_core.experiment.behaviour import behaviour_table
    from ckv_core.experiment.negatives import negatives_table
    from ckv_core.experiment.next_step import next_of_samples

    stored, reading = load_all(database, slug)
    if baseline:
        study = replace(reading.study, baseline=baseline).after(reading.study)
        reading = replace(reading, study=study)
    counts = stored.counts and stored.counts.sentence
    decision = reading.decision
    lines = reading.verdict.lines if every else [decision.headline, " ".join(decision.details)]
    say("\n".join(["", f"{stored.title}: {counts}, {stored.state}", *lines, ""]))
    _print_losses(reading)
    if not every:
        notes = filter(None, (*decision.cautions, reading.points.regimes.head))
        more = f"All figures: ckv show {quote(stored.title)} --all, or /run?id={slug} in the app."
        say("\n".join(["", *(f"note: {each}" for each in notes), more]))
    else:
        print_points(reading.points)
        print_table(behaviour_table(reading))
        print_table(replace(table := negatives_table(reading), items=table.items[: table.first]))
        for reason in dict.fromkeys(result.reason for result in reading.results if result.reason):
            alike = [result for result in reading.results if result.reason == reason]
            each_time = " each time" if alike[0].for_good else ""
            say(f"\n{len(alike):,} failed{each_time}: {reason}")
    if step := next_of_samples(reading, file):
        say(f"Next: {step}")


def _print_losses(reading: "Reading") -> None:
    """A row a method and budget, the full cache's first."""
    from ckv_core.experiment.runs import point_of

    decision = reading.decision
    methods = {each.variant: each for each in decision.methods if each.outcome != "unmeasured"}

    def decided(row: "Row") -> tuple[str, str]:
        method, budget = methods.get(row.curve_spec), point_of(row).budget or ""
        found = method.points.get(budget) if method else None
        if not method or not found or found.loss is None:  # no result has a score
            return "-", "-"
        pill = sentences.pill(found.state, method.budget, decision.tolerance)
        return sentences.points(found.at_most), pill

    def answered(row: "Row") -> str:
        others = (f", {n:,} {word}" for word in ("cut", "failed") if (n := row.outcomes.get(word)))
        return f"{row.outcomes.get('answered', 0):,} of {row.n:,}{''.join(others)}"

    columns: dict[str, Callable[[Row], str]] = {
        "Method": lambda row: row.name,
        "Budget": lambda row: sentences.budget_words(row.budget),
        "Answered": answered,
        "Loses at most": lambda row: decided(row)[0],
        "Kept (MiB)": lambda row: f"{row.memory[0] / 2**20:,.1f}" if row.memory else "-",
        "Decision": lambda row: decided(row)[1],
    }
    print_columns(reading.points.rows, columns)
