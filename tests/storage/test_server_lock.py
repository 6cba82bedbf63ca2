"""Laws of the server lock: one holder at a time, free again however the holder ends."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ckv_core.errors import StorageError
from storage.database import default_url, open_database
from storage.server_lock import only_server

HOLDER = """
import sys
from storage.database import open_database
from storage.server_lock import only_server
with only_server(open_database(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_server_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    url = default_url(tmp_path)
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, url],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with closing(open_database(url)) as database:
            with (
                pytest.raises(StorageError, match="Another CriticalKV Lab serves"),
                only_server(database),
            ):
                pass
            holder.kill()
            holder.wait()
            with only_server(database):
                pass
