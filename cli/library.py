"""`ckv list|show|export|import|delete`: saved runs and studies, without the pages.

Plotly and the pages' components are imported where they are used: a list must not wait for them.
"""

import json as json_text
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

from sqlalchemy import select
from typer import Argument, Option, Typer

from ckv_core.base.terminal import say
from ckv_core.base.whole_file import reported, write_whole
from ckv_core.cli.compare import print_run
from ckv_core.cli.options import JsonOption, command, read_text
from ckv_core.cli.tables import print_columns, print_points
from ckv_core.errors import CkvError, ConfigError, StorageError
from ckv_core.experiment.points_table import points_json
from ckv_core.experiment.runs import together
from ckv_core.records.codec import to_json
from ckv_core.records.run_request import meaning
from cli.run import DbOption, load_all, print_study
from storage import audit, library, repository
from storage.bundle import MAX_TOTAL_BYTES, import_bundle, write_bundle, write_bundles
from storage.database import Database, opened
from storage.models import ALIVE, END_STATES, OF_SAMPLES, SAMPLES, Run
from storage.recorder import Recorder
from storage.records import RunSummary, StoredRun

app = Typer()
NamesArgument = Annotated[
    list[str] | None, Argument(metavar="[NAME]...", help="as `ckv list` prints them")
]
MOST = 1_000_000  # runs in a list
LEADERBOARD = "kvpress-leaderboard"
RunOrSummary = TypeVar("RunOrSummary", StoredRun, RunSummary)


def found_run(database: Database, name: str) -> RunSummary:
    """The run of that slug, or of many samples and that name."""
    try:
        return database.read_with(library.summary, name)
    except repository.RunMissingError:
        slug = database.read_with(repository.slug_of_name, name)
        return database.read_with(library.summary, slug)


@command(app, "list")
def _list(db: DbOption = "") -> None:
    """List runs and studies, newest first."""
    with opened(db) as database:
        runs, _ = database.read_with(library.list_runs, limit=MOST)
    if not runs:
        say("There is no run yet.")
    print_columns(
        runs,
        {
            "name": lambda run: run.title if run.kind == SAMPLES else run.slug,
            "state": lambda run: run.state,
            "of": lambda run: (
                run.counts.sentence if run.counts else _counted(len(run.variant_specs), "variant")
            ),
            "model": lambda run: run.model_name,
            "title": lambda run: run.title,
            "made (UTC)": lambda run: f"{run.created_at:%Y-%m-%d %H:%M}",
        },
    )


@command(app, "show")
def _show(
    names: Annotated[list[str], Argument(metavar="NAME...")],
    baseline: Annotated[str, Option(metavar="SPEC", help=meaning("baseline"))] = "",
    every: Annotated[bool, Option("--all", help="of a study also all figures")] = False,
    db: DbOption = "",
) -> None:
    """Print the result of a run or study; of several runs one table over their prompts."""
    with opened(db) as database:
        if len(names) > 1:
            print_points(together([run.result for run in _several(database, names)]))
            return
        found = found_run(database, names[0])
        if found.kind == SAMPLES:
            print_study(database, found.slug, baseline, every=every)
            return
        run = database.read_with(repository.load_run, found.slug)
    say(f"{run.title}: {run.state}{run.reason and f', {run.reason}'}\n")
    print_run(run.result, run.request.answer)


def _several(database: Database, names: Sequence[str]) -> list[StoredRun]:
    """Runs of one sample that are over, oldest first."""
    runs = [_over(database.read_with(repository.load_run, name)) for name in dict.fromkeys(names)]
    return sorted(runs, key=lambda run: run.created_at)


@command(app, "delete")
def _delete(names: Annotated[list[str], Argument(metavar="NAME...")], db: DbOption = "") -> None:
    """Delete runs that are over, and studies with their results."""
    with opened(db) as database:
        found = [found_run(database, name) for name in dict.fromkeys(names)]
        slugs = [run.slug if run.kind == SAMPLES else _over(run).slug for run in found]
        with database.write() as session:
            library.delete_runs(session, slugs, datetime.now(UTC))
            audit.record(session, None, "deleted", *slugs)
    say(f"Deleted {', '.join(names)}.")


def _over(run: RunOrSummary) -> RunOrSummary:
    if run.state not in END_STATES:
        raise CkvError(f"Run {run.slug} is not over yet; wait for its end.")
    return run


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


# --- export -----------------------------------------------------------------------------


@command(app, "export")
def _export(
    names: NamesArgument = None,
    every: Annotated[bool, Option("--all", help="every run that is over")] = False,
    out: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="a bundle of runs; --all writes numbered ones if one is too small"
        ),
    ] = None,
    json: JsonOption = None,
    html: Annotated[Path | None, Option(metavar="FILE", help="a report that opens offline")] = None,
    kvpress: Annotated[
        Path | None, Option(metavar="FILE", help="a run's variants as Python for kvpress")
    ] = None,
    inspect: Annotated[
        str | None, Option(metavar="FILE|-", help="a study as a log of Inspect; - for stdout")
    ] = None,
    leaderboard: Annotated[
        Path | None,
        Option(
            "--kvpress-leaderboard",
            metavar="DIR",
            help="a study as folders for kvpress's leaderboard",
        ),
    ] = None,
    data: Annotated[
        bool, Option("--data", help="a study's JSON with all texts, for `import` elsewhere")
    ] = False,
    db: DbOption = "",
) -> int:
    """Write runs as a bundle; a run or study as JSON, report or code; the means of several."""
    kinds = {"json": json, "html": html, "kvpress": kvpress, "inspect": inspect}
    kinds[LEADERBOARD] = leaderboard
    wanted = {kind: str(path) for kind, path in kinds.items() if path}
    names = names or []
    if not wanted and not out:
        raise ConfigError("Name a file to write: --out FILE, --json, --html, --kvpress, --inspect.")
    if wanted and (every or len(names) != 1) and not (set(wanted) == {"json"} and names):
        raise ConfigError(f"--{next(iter(wanted))} takes one run or study; name it.")
    if out and bool(names) == every:
        raise ConfigError("Name the runs to export, or give --all.")
    with opened(db) as database:
        if wanted:
            found = found_run(database, names[0])
            if len(names) > 1:
                results = [run.result for run in _several(database, names)]
                documents = {"json": lambda: points_json(together(results))}
            elif found.kind == SAMPLES:
                documents = _study_documents(database, found.slug, data)
            else:
                documents = _run_documents(database, found.slug)
            for kind, path in wanted.items():
                _write(path, kind, documents)
        if out and every:
            return _export_all(database, out)
        if out:
            _write_bundle(out, len(set(names)), database.read_with(write_bundle, names))
    return 0


def _write(path: str, kind: str, documents: dict[str, Any]) -> None:
    if kind not in documents:
        raise ConfigError(
            f"--{kind} is not for this; take {', '.join(f'--{k}' for k in documents)}."
        )
    if kind == LEADERBOARD:
        say("\n".join(map(str, documents[kind](Path(path)))))
        return
    text = documents[kind]()
    if not isinstance(text, str | bytes):
        text = json_text.dumps(text, allow_nan=False)
    if path == "-":
        say(text if isinstance(text, str) else text.decode())
        return
    content = text if isinstance(text, bytes) else f"{text}\n".encode()
    write_whole(Path(path), lambda part: part.write_bytes(content))
    say(f"{path}: {len(content):,} bytes.")


def _run_documents(database: Database, slug: str) -> dict[str, Any]:
    """What writes each kind of a run."""
    run = _over(database.read_with(repository.load_run, slug))
    notes = database.read_with(repository.load_notes, slug)

    def report() -> bytes:
        from ui.report.report import build_report
        from ui.services.live_runs import stored_snapshot

        return build_report(stored_snapshot(run), notes)

    def code() -> str:
        from ui.report.kvpress_code import NOTHING, kvpress_code

        if run.result.prompt is None:
            raise CkvError(NOTHING)
        return kvpress_code(run.result, run.request.max_new_tokens)

    document = partial(to_json, run.result)
    return {"json": document, "html": report, "kvpress": code}


def _study_documents(database: Database, slug: str, with_data: bool) -> dict[str, Any]:
    """What writes each kind of a study."""
    from ckv_core.experiment.export import export
    from ckv_core.experiment.inspect_log import inspect_log
    from ckv_core.experiment.leaderboard import write_leaderboard
    from ui.report.report import report_of_samples

    _, reading = load_all(database, slug)
    return {
        "json": lambda: export(reading, with_data=with_data),
        "inspect": lambda: inspect_log(reading),
        "html": lambda: report_of_samples(reading),
        LEADERBOARD: partial(write_leaderboard, reading),
    }


def _export_all(database: Database, out: Path) -> int:
    """Write every run that is over to as many files as they need; 1 where one is left out."""
    left_out: list[StorageError] = []
    with database.read() as session:
        over = select(Run.slug).where(Run.state.in_(END_STATES), ALIVE, ~OF_SAMPLES)
        slugs = session.scalars(over.order_by(Run.id)).all()
        bundles = write_bundles(session, slugs, left_out.append)
        first_two = list(islice(bundles, 2))
        if not (first_two or left_out):
            raise StorageError("No run is over yet, so there is none to export.")
        for number, bundle in enumerate(chain(first_two, bundles), start=1):
            # Numbered so that names sort: a run's parent is in the same file or in one before.
            path = out if len(first_two) == 1 else out.with_stem(f"{out.stem}-{number:03}")
            _write_bundle(path, *bundle)
    for error in left_out:
        say(f"error: {error}", to_error=True)
    return 1 if left_out else 0


def _write_bundle(path: Path, count: int, data: bytes) -> None:
    write_whole(path, lambda part: part.write_bytes(data))
    say(f"{path}: {_counted(count, 'run')}, {len(data):,} bytes.")


# --- import -----------------------------------------------------------------------------


@command(app, "import")
def _import(
    file: Annotated[Path, Argument(metavar="FILE|DIR")],
    owner: Annotated[
        str, Option(metavar="NAME", help="user who will own it, where the app has logins")
    ] = "",
    db: DbOption = "",
) -> None:
    """Read runs of a bundle or result files, a study of export --data, or kvpress's folders."""
    from ckv_core.experiment.export import read_export  # scipy takes a second

    if file.is_dir():
        from ckv_core.experiment.leaderboard import read_leaderboard

        with opened(db) as database:
            print_study(database, Recorder(database).add(read_leaderboard(file), owner or None))
        return
    with reported(file, "read", StorageError):
        if file.stat().st_size > MAX_TOTAL_BYTES:
            raise StorageError(f"{file} is too big; nothing was imported.")
        data = file.read_bytes()
    with opened(db) as database:
        if b'"study"' not in data[:100]:
            say(import_bundle(database, data, owner or None).sentence)
            return
        slug = Recorder(database).add(read_export(read_text(str(file), "study")), owner or None)
        print_study(database, slug)
