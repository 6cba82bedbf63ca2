"""What is tracked works in every clone: no links into, and no paths of, somebody's machine."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Folders that differ from machine to machine; /opt and /var/lib of the documents are examples.
OF_A_MACHINE = re.compile(rb"(?<![\w.$}*~-])/(?:home|Users|root|work|tmp|mnt)/\w|[A-Z]:\\Users")
LINK = "120000"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
def test_no_tracked_file_is_a_link_or_names_a_machine():
    listed = subprocess.run(
        ["git", "ls-files", "--stage", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.rstrip("\0")
    modes = {entry.split("\t")[1]: entry.split(" ")[0] for entry in listed.split("\0")}
    assert [path for path, mode in modes.items() if mode == LINK] == []
    files = {path: (ROOT / path).read_bytes() for path in modes if (ROOT / path).is_file()}
    assert len(files) > 500
    assert {path for path, data in files.items() if OF_A_MACHINE.search(data)} == set()
