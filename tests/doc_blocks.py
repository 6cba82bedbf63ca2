"""Blocks of code in a document, run as written in one bare shell, and what they print compared."""

import os
import re
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_MARK = "=== block"
_PASSED_ON = ("HOME", "LANG", "OMP_NUM_THREADS", "PYTHONPATH")
_END = "END_OF_PYTHON\n"
# Processes, ports and a loopback of their own, for what starts or ends servers.
APART = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")
_LOOPBACK = "ip link set lo up"
_PRINTED = ("ckv", "make", "python", "cd", "source")
Block = tuple[str, str]  # its language and its text


def blocks(page: Path) -> list[Block]:
    found = _BLOCK.findall(page.read_text("utf-8"))
    return [(language, textwrap.dedent(text)) for _, language, text in found]


def commands(text: str) -> list[list[str]]:
    """The words of each command of a block, as bash passes them on; none runs."""
    functions = [f"{name}() {{ printf '%s\\n' {name} \"$@\" ''; }}" for name in _PRINTED]
    script = "\n".join([*functions, text])
    ran = subprocess.run(["bash", "-euc", script], check=True, capture_output=True, text=True)
    return [each.split("\n") for each in ran.stdout.removesuffix("\n\n").split("\n\n")]


def can_be_apart() -> bool:
    """Whether `unshare` and `ip` are there, and this user may have a namespace."""
    tried, env = [*APART, "bash", "-c", _LOOPBACK], {"PATH": os.defpath}
    with suppress(FileNotFoundError):
        return subprocess.run(tried, check=False, env=env, capture_output=True).returncode == 0
    return False


def run_as_shown(
    found: Sequence[Block], folder: Path, env: Mapping[str, str], apart: bool = False
) -> str:
    """Run `bash` and `python` blocks, python ones in a row as one session; return what they print.

    A `text` block is part of what the block before it prints; `[...]` is for lines left out.
    """
    begin = [*APART, "bash", "-c", f"{_LOOPBACK}\n{_script(found)}"]
    ran = subprocess.run(
        begin if apart else ["bash", "-c", _script(found)],
        cwd=folder,
        env={name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        | {"PATH": os.defpath, "HF_HUB_OFFLINE": "1", "no_proxy": "127.0.0.1"}
        | env,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    parts = re.split(rf"^{_MARK} (\d+)\n", ran.stdout, flags=re.MULTILINE)
    printed = dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))
    for number, (_, (language, shown)) in enumerate(pairwise(found)):
        if language == "text":
            missing = _missing(shown, printed[number])
            assert not missing, f"{missing!r} is not in:\n{printed[number]}"
    return ran.stdout


def _script(found: Sequence[Block]) -> str:
    lines, session = ["set -euo pipefail"], False
    for number, (language, text) in enumerate(found):
        if session and language == "bash":
            lines.append(_END)
            session = False
        if language == "bash":
            lines += [f"echo '{_MARK} {number}'", text]
        elif language == "python":
            lines += [] if session else ["python - <<'END_OF_PYTHON'"]
            lines += [f"print('{_MARK} {number}', flush=True)", text]
            session = True
    return "\n".join([*lines, _END if session else ""])


def _missing(shown: str, printed: str) -> str:
    """The first lines that were not printed one below the other, in that order; or empty."""
    left = _lines(printed)
    for part in re.split(r"^ *\[\.\.\.\]$", shown, flags=re.MULTILINE):
        wanted = _lines(part)
        starts = range(len(left) - len(wanted) + 1)
        found = next((at for at in starts if left[at : at + len(wanted)] == wanted), None)
        if found is None:
            return part
        left = left[found + len(wanted) :]
    return ""


def _lines(text: str) -> list[str]:
    """Those that are not empty."""
    return [line.strip() for line in text.splitlines() if line.strip()]
