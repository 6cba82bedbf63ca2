"""A disk that is really full: a run or a start fails with a sentence, a running app lives on."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
SMALL_DISK = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = 'mount -t tmpfs -o size=4m tmpfs "$1" && exec "$2" -m tests.reliability.full_disk "$1"'

# Its data, its temporary files and what it prints are on a disk that holds a database or nothing.
START = """
set -e; disk=$1; python=$2; export CKV_HOME=$disk/home TMPDIR=$disk CKV_PORT=$4
mount -t tmpfs -o size=2m tmpfs "$disk"; mkdir "$disk/home"
if [ "$3" = used ]; then "$python" -c "$5" "$disk/home"; fi
dd if=/dev/zero of="$disk/filler" bs=512 2> /dev/null || true
exec "$python" app.py > "$disk/out"
"""

NEW_DATABASE = """
import sys; from pathlib import Path; from storage.database import default_url, open_database
open_database(default_url(Path(sys.argv[1]))).close()
"""


def may_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    command = [*SMALL_DISK, 'mount -t tmpfs -o size=4m tmpfs "$1"', "sh", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_a_full_disk_fails_the_run_and_the_next_one_works(tmp_path: Path):
    if not may_mount(tmp_path):
        pytest.skip("this system lets no user mount a small disk")
    done = subprocess.run(
        [*SMALL_DISK, MOUNT, "sh", str(tmp_path), sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    failed, earlier, refused, backup, after, integrity = done.stdout.splitlines()
    assert failed.startswith("failed ")
    assert "is full; free some space" in failed
    assert "cannot be copied to" in refused
    assert "is full" in refused
    assert backup == "[]"
    assert (earlier, after, integrity) == ("done", "done", "ok")


@pytest.mark.slow
@pytest.mark.parametrize("state", ["new", "used"])
def test_a_start_on_a_full_disk_is_one_sentence(tmp_path: Path, state: str):
    if not may_mount(tmp_path):
        pytest.skip("this system lets no user mount a small disk")
    started = [sys.executable, state, str(free_port()), NEW_DATABASE]
    done = subprocess.run(
        [*SMALL_DISK, START, "sh", str(tmp_path), *started],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "full" in done.stderr
