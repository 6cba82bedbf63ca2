"""A disk that is really full: a run or a start fails with a sentence, a running app lives on."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
ON_A_DISK_OF_ITS_OWN = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = 'mount -t tmpfs -o size=4m tmpfs "$1"'
FILL = 'exec "$2" -m tests.reliability.full_disk "$1"'

# Its data, its temporary files and what it prints are on a disk that holds a library already.
START = """
set -e; disk=$1; python=$2; export CKV_HOME=$disk/home TMPDIR=$disk CKV_PORT=$3
mount -t tmpfs -o size=2m tmpfs "$disk"; "$python" -c "$4" "$disk/home"
dd if=/dev/zero of="$disk/filler" bs=512 2> /dev/null || true
exec "$python" app.py > "$disk/out"
"""

NEW_LIBRARY = """
import sys; from pathlib import Path; from storage.database import default_url, open_database
open_database(default_url(Path(sys.argv[1]))).close()
"""


def on_a_small_disk(script: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a shell's script where it may mount a disk in the folder, its first argument."""
    return subprocess.run(
        [*ON_A_DISK_OF_ITS_OWN, script, "sh", str(folder), sys.executable, *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def folder(tmp_path):
    """Where a small disk can be mounted."""
    if shutil.which("unshare") is None or on_a_small_disk(MOUNT, tmp_path).returncode != 0:
        pytest.skip("this system lets no user mount a small disk")
    return tmp_path


@pytest.mark.slow
def test_a_full_disk_fails_the_run_and_the_next_one_works(folder):
    done = on_a_small_disk(f"{MOUNT} && {FILL}", folder)
    assert done.returncode == 0, done.stderr
    failed, earlier, backup, new, left, after, integrity = done.stdout.splitlines()
    assert failed.startswith("failed ")
    assert "is full; free some space" in failed
    assert "cannot be copied to" in backup
    assert "is full" in backup
    assert "is full" in new
    assert left == "[]"
    assert (earlier, after, integrity) == ("done", "done", "ok")


@pytest.mark.slow
def test_a_start_on_a_full_disk_is_one_sentence(folder):
    done = on_a_small_disk(START, folder, str(free_port()), NEW_LIBRARY)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "full" in done.stderr
