"""The locks in locks/ are those of the lists, and what is installed here is what they say."""

import re
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.lock import LISTS, LOCKS, digest, packages

ROOT = Path(__file__).resolve().parents[1]
STALE = "run `make lock`, and commit locks/"


def locked() -> dict[str, str]:
    """Name -> its lines, of all locks."""
    texts = [file.read_text() for file in LOCKS.glob("*.txt")]
    lines = [f"{line}\n" for text in texts for line in text.splitlines() if line[0] != "#"]
    return {canonicalize_name(name): block for name, block in packages(lines).items()}


def asked() -> list[Requirement]:
    lines = [line for file in LISTS for line in (ROOT / file).read_text().splitlines()]
    return [Requirement(line) for line in lines if line and line[0] not in "#-"]


def test_the_locks_are_of_the_lists_as_they_are():
    for file in LOCKS.glob("*.txt"):
        assert file.read_text().splitlines()[0].endswith(f" {digest()}"), STALE
    pins = locked()
    for each in asked():
        name = canonicalize_name(each.name)
        assert f"{name}{each.specifier} " in pins[name], STALE


def test_each_locked_package_has_its_hashes_and_no_address():
    for file in LOCKS.glob("*.txt"):
        assert "://" not in file.read_text()
        assert "--index" not in file.read_text()
    for name, block in locked().items():
        pins = [line for line in block.splitlines() if "==" in line]
        assert pins, name
        assert all(re.search(r"==\S+ .*\\$", pin) for pin in pins), name
        assert block.count("--hash=sha256:") >= len(pins), name


def test_everything_that_is_needed_here_is_installed_as_locked():
    pins, wanted, seen = locked(), asked(), set()
    while wanted:
        name = canonicalize_name(wanted.pop().name)
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        version = found.version.partition("+")[0]  # torch's CPU build is 2.13.0+cpu
        assert f"{name}=={version} " in pins[name], f"{name} {version}: {STALE}"
        needs = [Requirement(line) for line in found.requires or ()]
        wanted += [
            each for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    assert {"gradio", "torch", "starlette", "pytest"} <= seen
