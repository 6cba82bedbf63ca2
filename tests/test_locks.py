"""The locks in locks/ are those of the lists, and what is installed here is what they say."""

import re
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from scripts.lock import EXTRA, LISTS, LOCKS, digest, packages

ROOT = Path(__file__).resolve().parents[1]
STALE = "run `make lock`, and commit locks/"


def locked() -> dict[str, str]:
    """Name -> its lines, of all locks."""
    texts = [file.read_text() for file in LOCKS.glob("*.txt")]
    lines = [f"{line}\n" for text in texts for line in text.splitlines() if line[0] != "#"]
    return {canonicalize_name(name): block for name, block in packages(lines).items()}


def asked(lists=LISTS) -> list[Requirement]:
    lines = [line for file in lists for line in (ROOT / file).read_text().splitlines()]
    return [Requirement(line) for line in lines if line and line[0] not in "#-"]


def test_the_locks_are_of_the_lists_as_they_are():
    for file in LOCKS.glob("*.txt"):
        lists = EXTRA if file.name == "lm-eval.txt" else LISTS
        assert file.read_text().splitlines()[0].endswith(f" {digest(lists)}"), STALE
    pins = locked()
    for each in asked((*LISTS, *EXTRA)):
        name = canonicalize_name(each.name)
        assert f"{name}{each.specifier} " in pins[name], STALE


def test_every_list_of_requirements_has_a_lock():
    assert {file.name for file in ROOT.glob("requirements*.txt")} == {*LISTS, *EXTRA}


def test_what_is_installed_on_top_has_all_it_needs_beside_the_runtime_and_disagrees_with_no_lock():
    extra, dev, runtime = (
        packages((LOCKS / f"{name}.txt").read_text().splitlines(keepends=True)[1:])
        for name in ("lm-eval", "dev", "runtime")
    )
    assert not extra.keys() & runtime.keys()
    assert all(block == extra[name] for name, block in dev.items() if name in extra)


def test_each_locked_package_has_its_hashes_and_no_address():
    for file in LOCKS.glob("*.txt"):
        assert "://" not in file.read_text()
        assert "--index" not in file.read_text()
    for name, block in locked().items():
        pins = [line for line in block.splitlines() if "==" in line]
        assert pins, name
        assert all(re.search(r"==\S+ .*\\$", pin) for pin in pins), name
        assert block.count("--hash=sha256:") >= len(pins), name


def test_pip_itself_is_the_one_that_an_environment_is_made_with():
    script = (ROOT / "scripts" / "create_venv.sh").read_text()
    (pinned,) = re.findall(r" install .*--upgrade pip==(\S+)", script)
    assert Version(distribution("pip").version) >= Version(pinned)


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
