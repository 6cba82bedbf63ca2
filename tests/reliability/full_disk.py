"""A server on a small disk that fills up during a run and is freed again.

Says what happened, one line each: how the run ended, what of a backup there is, how the next run
ended, what SQLite finds.
"""

import contextlib
import sqlite3
import sys
from pathlib import Path

from ckv_core.errors import StorageError
from storage.backup import copy_database
from storage.database import default_url, open_database
from tests.factories.app import (
    ENDLESS,
    end_of,
    finished,
    generating,
    make_client,
    script,
    wait_until,
)
from ui.services.services import Services


def main(disk: Path) -> None:
    """Fill the disk in the middle of a run."""
    database = open_database(default_url(disk))
    services = Services(database, make_client=make_client)
    kept = finished(services, "steps 2")
    slug = services.start_run(script(ENDLESS))
    wait_until(services, slug, generating)
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    end = end_of(services, slug)
    print(end.state, end.reason)
    print(services.snapshot(kept).state)  # still readable
    try:
        copy_database(disk / "ckv.sqlite3", disk / "backup")
    except StorageError as error:
        print(error)
    print(sorted(path.name for path in disk.iterdir() if "backup" in path.name))
    filler.unlink()
    print(end_of(services, services.start_run(script("steps 2"))).state)
    services.close()
    database.close()
    with sqlite3.connect(disk / "ckv.sqlite3") as raw:
        print(raw.execute("PRAGMA integrity_check").fetchone()[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
