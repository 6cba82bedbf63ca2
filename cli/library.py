"""`ckv export|import|backup|restore`: saved runs, without the pages.

Plotly and the pages' components are imported where they are used: a backup must not wait for them.
"""

import argparse
from contextlib import closing
from itertools import chain, islice
from pathlib import Path

from sqlalchemy import select

from ckv_core.cli.options import Commands
from ckv_core.errors import CkvError, ConfigError, StorageError
from ckv_core.runtime.terminal import say
from storage import repository
from storage.backup import copy_database, database_file, restore
from storage.bundle import MAX_TOTAL_BYTES, write_bundle, write_bundles
from storage.bundle_import import import_bundle
from storage.database import database_url, open_database
from storage.models import ALIVE, END_STATES, OF_SAMPLES, Run
from storage.records import RunNotes, StoredRun
from storage.sqlite_file import check_whole, write_whole


def register(commands: Commands) -> None:
    """The commands; each returns what it says."""
    _add_export(commands.add_parser("export", help="write runs as a bundle, a report or code"))

    verb = commands.add_parser("import", help="read the runs of a bundle, all or none")
    verb.add_argument("file", type=Path, metavar="FILE")
    verb.add_argument(
        "--owner", metavar="NAME", help="the user to whom the runs will belong, with logins"
    )
    verb.set_defaults(command=_import)

    verb = commands.add_parser("backup", help="copy the SQLite database, also while it is in use")
    verb.add_argument("file", type=Path, metavar="FILE", help="must not exist yet")
    verb.set_defaults(command=_backup)

    verb = commands.add_parser("restore", help="put a backup in place; no server may run")
    verb.add_argument("file", type=Path, metavar="FILE")
    verb.set_defaults(command=_restore)


def _add_export(export: argparse.ArgumentParser) -> None:
    add = export.add_argument
    add("slugs", nargs="*", metavar="SLUG", help="names of runs, as in their links")
    add("--all", action="store_true", help="every run that is over")
    numbered = "zip to write; --all numbers it where the runs need several"
    add("--out", type=Path, metavar="FILE", help=numbered)
    add("--html", type=Path, metavar="FILE", help="one run as an HTML report that opens offline")
    add("--without", default="", metavar="PARTS", help="left out of the report: kept,charts,strips")
    add("--kvpress", type=Path, metavar="FILE", help="one run's variants as Python for kvpress")
    export.set_defaults(command=_export)


def _export(options: argparse.Namespace) -> str | int:
    told = []
    if options.html or options.kvpress:
        run, notes = _load(options)
        if options.html:
            told.append(_write_report(options, run, notes))
        if options.kvpress:
            told.append(_write_kvpress(options.kvpress, run))
    if options.out:
        if bool(options.slugs) == options.all:
            raise ConfigError("Name the runs to export, or give --all.")
        if options.all:
            return _export_all(options.out)
        with closing(open_database(database_url())) as database, database.read() as session:
            data = write_bundle(session, options.slugs)
        told.append(_write_bundle(options.out, len(set(options.slugs)), data))
    elif not told:
        raise ConfigError("Name the file to write with --out FILE.")
    return "\n".join(told)


def _load(options: argparse.Namespace) -> tuple[StoredRun, RunNotes]:
    if options.all or len(options.slugs) != 1:
        raise ConfigError("--html and --kvpress take one run; name its slug.")
    (slug,) = options.slugs
    with closing(open_database(database_url())) as database, database.read() as session:
        run, notes = repository.load_run(session, slug), repository.load_notes(session, slug)
    if run.state not in END_STATES:
        raise CkvError(f"Run {slug} is not over yet; wait for its end.")
    return run, notes


def _write_report(options: argparse.Namespace, run: StoredRun, notes: RunNotes) -> str:
    from ui.report.contents import read_groups
    from ui.report.report import build_report
    from ui.services.live_runs import stored_snapshot

    data = build_report(stored_snapshot(run), notes, read_groups(options.without))
    write_whole(options.html, data)
    return f"{options.html}: report of {run.slug}, {len(data):,} bytes."


def _write_kvpress(path: Path, run: StoredRun) -> str:
    from ui.report.kvpress_code import NOTHING, kvpress_code

    if run.result.prompt is None:
        raise CkvError(NOTHING)
    write_whole(path, kvpress_code(run.result, run.request.max_new_tokens).encode())
    return f"{path}: {len(run.result.variants)} variants of {run.slug} for kvpress."


def _export_all(out: Path) -> int:
    """Write every run that is over to as many files as they need; 1 where one is left out."""
    left_out: list[StorageError] = []
    with closing(open_database(database_url())) as database, database.read() as session:
        over = select(Run.slug).where(Run.state.in_(END_STATES), ALIVE, ~OF_SAMPLES)
        slugs = session.scalars(over.order_by(Run.id)).all()
        bundles = write_bundles(session, slugs, left_out.append)
        first_two = list(islice(bundles, 2))
        if not (first_two or left_out):
            raise StorageError("No run is over yet, so there is none to export.")
        if len(first_two) == 1:
            say(_write_bundle(out, *first_two[0]))
        else:
            # Numbered so that names sort: a run's parent is in the same file or in one before.
            for number, bundle in enumerate(chain(first_two, bundles), start=1):
                say(_write_bundle(out.with_stem(f"{out.stem}-{number:03}"), *bundle))
    for error in left_out:
        say(f"error: {error}", to_error=True)
    return 1 if left_out else 0


def _write_bundle(path: Path, count: int, data: bytes) -> str:
    write_whole(path, data)
    return f"{path}: {count:,} {'run' if count == 1 else 'runs'}, {len(data):,} bytes."


def _import(options: argparse.Namespace) -> str:
    try:
        if options.file.stat().st_size > MAX_TOTAL_BYTES:
            raise StorageError(f"{options.file} is too big for a bundle; nothing was imported.")
        data = options.file.read_bytes()
    except OSError as error:
        raise StorageError(f"{options.file} cannot be read: {error.strerror}.") from None
    with closing(open_database(database_url())) as database:
        return import_bundle(database, data, options.owner).sentence


def _backup(options: argparse.Namespace) -> str:
    if options.file.exists():
        raise ConfigError(f"{options.file} exists; name a new file.")
    file = database_file(database_url())
    check_whole(file)
    copy_database(file, options.file)
    return f"{options.file}: {options.file.stat().st_size:,} bytes."


def _restore(options: argparse.Namespace) -> str:
    kept = restore(options.file, database_url())
    before = f" The database before it is {kept}." if kept else ""
    return f"Restored {options.file}.{before}"
