"""A server on a small disk that fills up during a run and is freed again.

Says what happened, one line each: how the run ended, what of a backup and of a new library there
is, how the next run ended, what SQLite finds.
"""

import contextlib
import sqlite3
import sys
from pathlib import Path


def main(disk: Path) -> None:
    """Fill the disk in the middle of a run."""
    # Not above: each worker imports this module, and needs none of them.
    from ckv_core.errors import StorageError
    from storage.database import default_url, open_database
    from storage.sqlite import copy_database
    from tests.factories import app
    from ui.services.services import Services

    database = open_database(default_url(disk))
    services = Services(database, make_client=app.make_client)
    kept = app.finished(services, "steps 2")
    slug = services.start_run(app.script(app.ENDLESS))
    app.wait_until(services, slug, app.generating)
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    end = app.end_of(services, slug)
    print(end.state, end.reason)
    print(services.snapshot(kept).state)  # still readable
    for refused in (
        lambda: copy_database(disk / "ckv.sqlite3", disk / "backup"),
        lambda: open_database(f"sqlite:///{disk}/new.sqlite3"),
    ):
        try:
            refused()
        except StorageError as error:
            print(error)
    names = {path.name for path in disk.iterdir() if not path.name.endswith(".lock")}
    print([name for name in names if "backup" in name or "new" in name])
    filler.unlink()
    print(app.end_of(services, services.start_run(app.script("steps 2"))).state)
    services.close()
    database.close()
    with sqlite3.connect(disk / "ckv.sqlite3") as raw:
        print(raw.execute("PRAGMA integrity_check").fetchone()[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
