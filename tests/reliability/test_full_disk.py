"""A disk that is really full: the run fails with a sentence, the app lives on."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL_DISK = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = 'mount -t tmpfs -o size=4m tmpfs "$1" && exec "$2" -m tests.reliability.full_disk "$1"'


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
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    failed, earlier, after, integrity = done.stdout.splitlines()
    assert failed.startswith("failed ")
    assert "is full; free some space" in failed
    assert (earlier, after, integrity) == ("done", "done", "ok")
