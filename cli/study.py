"""`ckv study`: run, list, show and export studies of the app's database."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckv_core.cli import running
from ckv_core.cli.options import Commands, check_json_path, device_name, model_name, read_text
from ckv_core.cli.tables import print_columns, share
from ckv_core.errors import CkvError, ConfigError
from ckv_core.results.events import Progress
from ckv_core.runtime.terminal import say, show_line
from ckv_core.studies.cluster import Cluster
from ckv_core.studies.data import read_file, read_samples, samples_of_runs
from ckv_core.studies.harness import LM_EVAL, harness_samples
from ckv_core.studies.records import Key, Sample, SampleResult, Study
from ckv_core.studies.runner import Cost, cost, open_points, part_of
from ckv_core.studies.spec import read_study
from storage.studies import Studies, open_studies

if TYPE_CHECKING:
    from ckv_core.models.steps import Step
    from ckv_core.studies.engine import LocalEngine

LONG_S = 1800.0  # a study that takes longer asks first


def register(commands: Commands) -> None:
    parser = commands.add_parser("study", help="many samples x methods x budgets, saved")
    acts = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    run = acts.add_parser("run", help="run a study file, or what is left of it")
    listed = acts.add_parser("list", help="list all studies")
    show = acts.add_parser("show", help="print what a study says")
    export = acts.add_parser("export", help="write a study with its results as files")
    imported = acts.add_parser("import", help="store a study that was exported with --data")
    imported.add_argument("file", metavar="FILE.json")
    _add_run_options(run)
    _add_export_options(export)
    for each in (show, export):
        each.add_argument("name", metavar="NAME", help="as in the study file")
    commands_of = {run: _run, listed: _list, show: _show, export: _export, imported: _import}
    for each, command in commands_of.items():
        each.set_defaults(command=command)
        each.add_argument(
            "--db", metavar="URL", help="database; default: $CKV_DATABASE_URL or that of CKV_HOME"
        )


def _add_run_options(run: argparse.ArgumentParser) -> None:
    add = run.add_argument
    add("file", metavar="FILE.yaml", help="docs/studies.md describes it")
    shard = "only every Nth sample, from the Ith on; several machines share a study so"
    add("--shard", metavar="I/N", help=shard)
    add("--device", help="auto, cpu or cuda; default: $CKV_DEVICE or auto")
    cluster = "run on Ray: local, auto or an address; default: $CKV_CLUSTER or this process alone"
    add("--cluster", metavar="ADDRESS", help=cluster)
    most = "of the cluster, at most; default: as many as fit"
    add("--workers", type=int, metavar="N", help=most)
    cpus = "CPUs of a worker without a GPU; default 1"
    add("--threads", type=int, default=1, metavar="N", help=cpus)
    add("--yes", action="store_true", help="do not ask before a long study")


def _add_export_options(export: argparse.ArgumentParser) -> None:
    for name, what in (
        ("--json", "all of it; - for stdout"),
        ("--inspect", "a log of Inspect; - for stdout"),
    ):
        export.add_argument(name, metavar="FILE|-", help=what)
    export.add_argument("--html", metavar="FILE", help="a report that opens offline")
    export.add_argument(
        "--data", action="store_true", help="JSON with all texts, for `study import` elsewhere"
    )


# --- run --------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    study = read_study(read_text(options.file, "study"), model_name(None))
    number, of = _shard(options.shard)
    with ExitStack() as stack:
        store = stack.enter_context(open_studies(options.db))
        samples = _given_samples(study, options.file, store)
        engine = stack.enter_context(_engine(study, options))
        if samples is None:
            samples = engine.samples(study)
        slug = store.save(study, samples)
        part = part_of(store.samples(slug), number, of)  # in the stored order, which is random
        standing = store.standing(slug)
        if not _agreed(_told_cost(study, part, standing, engine), options):
            say("Nothing was run.")
            return 1
        for progress in engine.run_study(
            study,
            part,
            standing,
            lambda results: store.commit(slug, results),
            lambda model, versions: store.served_by(slug, model, dict(versions)),
        ):
            left = progress.seconds_left
            rest = "" if left is None else f", about {_duration(left)} left"
            show_line(f"{progress.done:,} of {progress.total:,} samples{rest}")
        running.clear_progress()
        store.rest(slug)
        _print_study(store, slug)
        ids = {sample.id for sample in part}
        failed = any(r.state == "failed" for r in store.results(slug) if r.sample in ids)
        return 1 if failed or not store.load(slug).counts.done else 0


@contextmanager
def _engine(study: Study, options: argparse.Namespace) -> "Iterator[Cluster | LocalEngine]":
    """This process with the model, or a cluster."""
    device = device_name(options.device)
    address = options.cluster or os.environ.get("CKV_CLUSTER")
    if address:
        for name in ("workers", "threads"):
            if getattr(options, name) is not None and getattr(options, name) < 1:
                raise ConfigError(f"--{name} must be at least 1.")
        with closing(Cluster(address, device, options.workers, options.threads)) as cluster:
            yield cluster
        return
    from ckv_core.studies.engine import LocalEngine

    engine = LocalEngine(study.model, device, _report)
    running.clear_progress()
    yield engine


def _report(step: "Step") -> None:
    running.show_progress(Progress("load", step.fraction, step.sentence))


def _given_samples(study: Study, path: str, store: Studies) -> tuple[Sample, ...] | None:
    """Of its data file (beside the study file), of runs or lm_eval; None for a task of ours."""
    if "runs" in study.data:
        return samples_of_runs(store.requests(study.data["runs"]))
    if LM_EVAL in study.data:
        show_line("lm_eval reads the list of its tasks, which takes some 20 s")
        samples = harness_samples(study)
        running.clear_progress()
        return samples
    if "file" not in study.data:
        return None
    file = (Path() if path == "-" else Path(path).parent) / study.data["file"]
    return read_samples(read_file(file), file.name, study.data.get("columns"))


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of) <= 10_000):
        raise ConfigError(f"--shard {text!r} must read I/N with I from 1 to N, for example 1/4.")
    return int(number), int(of)


def _told_cost(
    study: Study, samples: Sequence[Sample], standing: set[Key], engine: "Cluster | LocalEngine"
) -> Cost:
    counts = {sample.id: len(open_points(study, sample, standing)) for sample in samples}
    if not any(counts.values()):
        say("Nothing is left to run.")
        return cost(study, {}, counts)
    sizes = engine.sizes(study, [sample for sample in samples if counts[sample.id]])
    needed = cost(study, sizes, counts, engine.parameters)
    seconds = needed.seconds / engine.workers
    each = f" for each of {engine.workers} workers" if engine.workers > 1 else ""
    say(
        f"{needed.samples:,} samples, {needed.points:,} results to come; {needed.tokens:,} prompt "
        f"tokens, at most {needed.longest:,} each; about "
        f"{_duration(seconds)}, going by the default model on two CPU cores{each}. Ctrl-C "
        "stops; the same command goes on."
    )
    return replace(needed, seconds=seconds)


def _agreed(needed: Cost, options: argparse.Namespace) -> bool:
    """Whether to run: somebody at a terminal is asked before a long study."""
    if options.yes or needed.seconds < LONG_S or not sys.stdin.isatty():
        return True
    say("Run it? y for yes: ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60):,} minutes" if seconds < 5400 else f"{seconds / 3600:,.1f} hours"


# --- list, show, export -----------------------------------------------------------------


def _list(options: argparse.Namespace) -> int:
    with open_studies(options.db) as store:
        studies = store.every()
    if not studies:
        say("There is no study yet.")
        return 0
    print_columns(
        studies,
        {
            "name": lambda each: each.title,
            "state": lambda each: each.state,
            "results": lambda each: each.counts.sentence if each.counts else "cannot be read",
            "model": lambda each: each.model_name,
            "made (UTC)": lambda each: f"{each.created_at:%Y-%m-%d %H:%M}",
        },
    )
    return 0


def _show(options: argparse.Namespace) -> int:
    with open_studies(options.db) as store:
        _print_study(store, store.slug(options.name))
    return 0


def _export(options: argparse.Namespace) -> int:
    from ckv_core.studies.export import export  # scipy takes a second
    from ckv_core.studies.inspect_log import inspect_log
    from ui.report.study import report_of_study

    if not (options.json or options.inspect or options.html):
        raise ConfigError("Say what to write: --json, --html or --inspect, and a file.")
    for path in (options.json, options.inspect):
        check_json_path(path)
    with open_studies(options.db) as store:
        slug = store.slug(options.name)
        stored, samples = store.load(slug), store.samples(slug)
        of_study = (stored.study, samples, store.results(slug), stored.facts)
    told = partial(export, *of_study, with_data=options.data)
    running.deliver(options.json, told, lambda: None)
    running.deliver(options.inspect, lambda: inspect_log(*of_study), lambda: None)
    if options.html:
        _write(options.html, report_of_study(slug, *of_study).decode())
    return 0


def _write(path: str, text: str) -> None:
    if path == "-":
        say(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CkvError(f"{path!r} cannot be written: {error.strerror or error}.") from None


def _import(options: argparse.Namespace) -> int:
    from ckv_core.studies.export import read_export  # scipy takes a second

    exported = read_export(read_file(Path(options.file)))
    with open_studies(options.db) as store:
        _print_study(store, store.add(exported))
    return 0


def _print_study(store: Studies, slug: str) -> None:
    stored = store.load(slug)
    samples, results = store.samples(slug), store.results(slug)
    say(f"\n{stored.study.name}: {stored.counts.sentence}, {stored.state}")
    _print_decision(stored.study, samples, results)
    _print_scores(stored.study, samples, results)
    for reason in dict.fromkeys(result.reason for result in results if result.reason):
        alike = [result for result in results if result.reason == reason]
        each_time = " each time" if alike[0].for_good else ""
        say(f"\n{len(alike):,} failed{each_time}: {reason}")


def _print_decision(
    study: Study, samples: Sequence[Sample], results: Sequence[SampleResult]
) -> None:
    from ckv_core.studies.decision import decide_study

    decision = decide_study(study, samples, results)
    say(decision.sentence)
    for method in decision.methods:
        say(f"  {method.sentence}")
    for caution in decision.cautions:
        say(f"  note: {caution}")
    say()


def _print_scores(study: Study, samples: Sequence[Sample], results: Sequence[SampleResult]) -> None:
    from ckv_core.studies.reading import read_results

    print_columns(
        read_results(study, samples, results).rows,
        {
            "variant": lambda row: row.point.variant,
            "budget": lambda row: row.point.budget or "-",
            "n": lambda row: f"{row.n:,}",
            "score": lambda row: "-" if row.score is None else f"{row.score:.3f}",
            "95 % interval": lambda row: (
                "-" if row.low is None else f"{row.low:.3f} to {row.high:.3f}"
            ),
            "cache": lambda row: share(row.cache_share),
            "cut": lambda row: f"{row.cut:,}",
            "failed": lambda row: f"{row.failed:,}",
        },
    )
