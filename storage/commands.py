"""`python app.py export|import|backup|restore|downgrade`: saved runs, without the pages."""

import argparse
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any

from sqlalchemy import select

from ckv_core.errors import CkvError, ConfigError, StorageError
from ckv_core.runtime.home import home_folder
from ckv_core.runtime.terminal import say
from storage.backup import copy_database, database_file, restore
from storage.bundle import MAX_TOTAL_BYTES, write_bundle, write_bundles
from storage.bundle_import import import_bundle
from storage.database import default_url, downgrade, open_database
from storage.models import ALIVE, END_STATES, Run
from storage.sqlite_file import check_whole, write_whole


def main(
    arguments: Sequence[str],
    extend_export: Callable[[argparse.ArgumentParser], None] | None = None,
    add_more: Callable[[Any], None] | None = None,
) -> int:
    """Run one command.

    Args:
        arguments: as typed, without the program's name.
        extend_export: adds to `export` what needs more than storage; its `run` then decides.
        add_more: adds commands to those here.

    Returns:
        0 done, 1 failed, 2 wrong arguments; a failure is one line on stderr.
    """
    options = _parser(extend_export, add_more).parse_args(arguments)
    try:
        say(options.run(options))
    except CkvError as error:
        say(str(error), to_error=True)
        return error.exit_code
    return 0


def _parser(
    extend_export: Callable[[argparse.ArgumentParser], None] | None,
    add_more: Callable[[Any], None] | None,
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="app.py",
        description="Serve the app (no command), or work on its saved runs. The database is that "
        "of CKV_DATABASE_URL or CKV_HOME.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    verb = commands.add_parser("export", help="write runs as a bundle")
    verb.add_argument("slugs", nargs="*", metavar="SLUG", help="names of runs, as in their links")
    verb.add_argument("--all", action="store_true", help="every run that is over")
    verb.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="zip to write; --all numbers it where the runs need several",
    )
    verb.set_defaults(run=export_bundle)
    if extend_export is not None:
        extend_export(verb)

    verb = commands.add_parser("import", help="read the runs of a bundle, all or none")
    verb.add_argument("file", type=Path, metavar="FILE")
    verb.add_argument(
        "--owner", metavar="NAME", help="the user to whom the runs will belong, with logins"
    )
    verb.set_defaults(run=_import)

    verb = commands.add_parser("backup", help="copy the SQLite database, also while it is in use")
    verb.add_argument("file", type=Path, metavar="FILE", help="must not exist yet")
    verb.set_defaults(run=_backup)

    verb = commands.add_parser("restore", help="put a backup in place; no server may run")
    verb.add_argument("file", type=Path, metavar="FILE")
    verb.set_defaults(run=_restore)

    verb = commands.add_parser(
        "downgrade", help="lead the tables back, for an older version of the app; no server may run"
    )
    verb.add_argument("schema", metavar="SCHEMA", help="as the older version names it, e.g. 0004")
    verb.set_defaults(run=_downgrade)
    if add_more is not None:
        add_more(commands)
    return parser


def export_bundle(options: argparse.Namespace) -> str:
    """Write the chosen runs to `out`, all of them to as many files as they need.

    Returns:
        What was done, one line a file.

    Raises:
        CkvError: no run or no file is named, or one cannot be read or written.
    """
    if options.out is None:
        raise ConfigError("Name the file to write with --out FILE.")
    if bool(options.slugs) == options.all:
        raise ConfigError("Name the runs to export, or give --all.")
    with closing(open_database(database_url())) as database, database.read() as session:
        if not options.all:
            data = write_bundle(session, options.slugs)
            return _write_bundle(options.out, len(set(options.slugs)), data)
        over = select(Run.slug).where(Run.state.in_(END_STATES), ALIVE)
        bundles = write_bundles(session, session.scalars(over.order_by(Run.id)).all())
        first_two = list(islice(bundles, 2))
        if not first_two:
            raise StorageError("No run is over yet, so there is none to export.")
        if len(first_two) == 1:
            return _write_bundle(options.out, *first_two[0])
        # Numbered so that their names sort: a run's parent is in the same file or in one before.
        return "\n".join(
            _write_bundle(options.out.with_stem(f"{options.out.stem}-{number:03}"), *bundle)
            for number, bundle in enumerate(chain(first_two, bundles), start=1)
        )


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


def _downgrade(options: argparse.Namespace) -> str:
    downgrade(database_url(), options.schema)
    return f"The database has schema {options.schema}; install the version of the app for it."


def database_url() -> str:
    """The database that the environment names."""
    return os.environ.get("CKV_DATABASE_URL", "").strip() or default_url(home_folder())
