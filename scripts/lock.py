"""Writes locks/ from the lists of requirements: each package in one version, with its hashes.

uv resolves for every platform at once. torch and the packages that only its CUDA builds need have
files of their own, so that a machine with a CPU build never fetches those.
"""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "locks"
LISTS = (
    "requirements.txt",
    "requirements-dev.txt",
    "requirements-mcp.txt",
    "requirements-cluster.txt",
)
EXTRA = ("requirements-lm-eval.txt",)  # installed by those who need it, on top of the others
_OF_CUDA = ("cuda-", "nvidia-", "triton")
_RESOLVE = ("--universal", "--python-version=3.11", "--generate-hashes")
_PLAIN = ("--no-header", "--no-annotate", "--quiet")


def main() -> None:
    """Resolve the lists and write the five files."""
    runtime = _resolve("requirements.txt")
    dev = _resolve("requirements-dev.txt", constraint=runtime)
    runtime["torch"] = _with_builds_here(runtime["torch"])
    cuda = [name for name in runtime if name.startswith(_OF_CUDA)]
    files = {
        "torch": ["torch"],
        "cuda": cuda,
        "runtime": [name for name in runtime if name not in ("torch", *cuda)],
        "dev": [name for name in dev if name not in runtime],
    }
    LOCKS.mkdir(exist_ok=True)
    head = f"# Made by `make lock`; of the lists, sha256 {digest()}\n"
    for file, names in files.items():
        text = "".join((dev | runtime)[name] for name in names)
        (LOCKS / f"{file}.txt").write_text(head + text)
    _lock_extra(runtime, dev)


def _lock_extra(runtime: dict[str, str], dev: dict[str, str]) -> None:
    """Write the lock of `EXTRA`: what it needs on top of runtime, in versions that suit dev too."""
    found = _resolve(*EXTRA, constraint=dev | runtime)
    head = f"# Made by `make lock`; of the lists, sha256 {digest(EXTRA)}\n"
    text = "".join(block for name, block in found.items() if name not in runtime)
    (LOCKS / "lm-eval.txt").write_text(head + text)


def digest(lists: Iterable[str] = LISTS) -> str:
    """Of what the lists ask for; a lock that carries another one is not theirs."""
    wanted = sorted(
        line.split(" #")[0].strip()
        for file in lists
        for line in (ROOT / file).read_text().splitlines()
        if line.strip() and not line.startswith("#")
    )
    return hashlib.sha256("\n".join(wanted).encode()).hexdigest()


def _resolve(file: str, constraint: dict[str, str] | None = None) -> dict[str, str]:
    """The lines of each package by its name, in the order of the alphabet."""
    uv = str(Path(sys.executable).with_name("uv"))
    constrained = ["--constraint=-"] if constraint else []
    found = subprocess.run(  # noqa: S603
        [uv, "pip", "compile", *_RESOLVE, *_PLAIN, *constrained, file],
        cwd=ROOT,
        input="".join(constraint.values()) if constraint else None,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return packages(found.stdout.splitlines(keepends=True))


def packages(lines: Iterable[str]) -> dict[str, str]:
    """Name -> its lines; a package that differs between platforms has several pins in them."""
    blocks: dict[str, str] = {}
    name = ""
    for line in lines:
        if found := re.match(r"[\w.-]+", line):
            name = found[0]
        blocks[name] = blocks.get(name, "") + line
    return blocks


def _with_builds_here(torch: str) -> str:
    """The lines of torch, with builds that the registry's default index does not have.

    These are the one that pip on this machine prefers, and those that were locked before.
    """
    pin = torch.splitlines(keepends=True)[0]
    hashes = set(re.findall(r"sha256:\w+", torch))
    before = LOCKS / "torch.txt"
    if before.exists() and pin in before.read_text():
        hashes |= set(re.findall(r"sha256:\w+", before.read_text()))
    version = pin.split()[0]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    command += ["--no-deps", "--only-binary=:all:", "--quiet", "--report=-", version]
    report = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603
    (build,) = json.loads(report.stdout)["install"]
    hashes.add(f"sha256:{build['download_info']['archive_info']['hashes']['sha256']}")
    return pin + " \\\n".join(f"    --hash={each}" for each in sorted(hashes)) + "\n"


if __name__ == "__main__":
    main()
