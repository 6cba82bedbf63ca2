"""What presses keep, as kvpress in its own environment says. No torch.

A press is requested by a SPEC of ours, or in kvpress's own words.
"""

import ast
import base64
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from ckv_core.errors import CkvError, ConfigError
from ckv_core.methods.parts.critical import CRITICAL
from ckv_core.methods.parts.press import VERSION, Argument, Chain
from ckv_core.records.variants import VariantSpec

_OURS = Path(__file__).parents[2] / ".venv-kvpress" / "bin" / "python"
_SIDE = Path(__file__).with_name("side.py")

KeepMask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Job:
    """One press on one text."""

    text: int  # its index
    press: Chain  # from the outermost in
    budget: int  # entries per KV head, on average


def kvpress_python(given: str | None = None) -> str:
    """The Python that has kvpress: as given, or as make sets it up."""
    path = Path(given) if given else _OURS
    if not path.is_file():
        raise ConfigError(
            f"There is no Python with kvpress at {str(path)!r}; set one up with 'make kvpress', "
            "or name it with --python."
        )
    return str(path)


def kept_by_presses(
    python: str,
    model: Path,
    texts: Sequence[Sequence[int]],
    jobs: Sequence[Job],
    module: Path | None = None,
) -> Iterator[KeepMask | CkvError]:
    """Yield what each job keeps, as it comes.

    Args:
        python: as `kvpress_python` gives it.
        model: folder of the checkpoint.
        texts: tokens of each compressed prompt.
        jobs: what to run, in the order of their texts.
        module: a Python file with more presses.

    Yields:
        Per job [layers, kv_heads, tokens], or why that press cannot run.

    Raises:
        CkvError: the process cannot be started, has another kvpress, or stops.
    """
    document = {
        "model": str(model),
        "module": module and str(module),
        "texts": [list(tokens) for tokens in texts],
        "jobs": [
            {
                "text": job.text,
                # A hundredth of an entry more, so that int() there does not round one away.
                "removed": max(1 - (job.budget + 0.01) / len(texts[job.text]), 0.0),
                "press": job.press,
            }
            for job in jobs
        ],
    }
    with (
        TemporaryFile("w+", encoding="utf-8", errors="replace") as log,
        _answers(python, document, log) as answers,
    ):
        first: dict[str, Any] = next(answers, {})
        if "version" not in first:
            raise CkvError(first.get("error") or _stopped(log))
        if first["version"] != VERSION:
            raise ConfigError(
                f"kvpress {first['version']} is there, and {VERSION} is what is known here; set "
                "that up with 'make kvpress'."
            )
        for job in jobs:
            if (answer := next(answers, None)) is None:
                raise CkvError(_stopped(log))
            if "error" in answer:
                yield CkvError(answer["error"])
                continue
            tokens = len(texts[job.text])
            yield np.stack([unpacked(layer, tokens) for layer in answer["kept"]])


@contextmanager
def _answers(python: str, document: dict[str, Any], log: IO[str]) -> Iterator[Iterator[Any]]:
    """Give the values that kvpress's Python answers with, until it ends."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(  # noqa: S603 - our own file, the user's own Python
            [python, "-I", str(_SIDE)], stdin=pipe, stdout=pipe, stderr=log, text=True
        )
    except OSError as error:
        raise ConfigError(f"{python!r} cannot be run: {error.strerror or error}.") from None
    with process:
        try:
            with suppress(BrokenPipeError), cast("IO[str]", process.stdin) as questions:
                json.dump(document, questions)
            yield map(json.loads, process.stdout or ())
        finally:
            process.kill()


def unpacked(text: str, tokens: int) -> KeepMask:
    """[kv_heads, tokens] of one layer's bits."""
    bits = np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8))
    heads = len(bits) // tokens
    return bits[: heads * tokens].reshape(heads, tokens).astype(np.bool_)


def _stopped(log: IO[str]) -> str:
    """Quote the last line in the log of a process that ended early."""
    log.seek(0)
    last = (log.read().strip().splitlines() or ["it wrote nothing"])[-1][:200]
    return f"kvpress's process stopped: {last}"


_MAX_CHARS = 1_000


def parse_press(text: str) -> Chain:
    """Read `adakv+critical:safeguard=0.1` or `AdaKVPress(CURPress(num_sinks=4))`.

    A SPEC is read under the preset kvpress. ConfigError where kvpress cannot do what it says.
    """
    if re.match(r"\s*[A-Z]", text):
        return _written(text)
    spec = VariantSpec.parse(text, {"preset": "kvpress"})
    press = spec.method.press
    reason = _unfit(spec)
    if reason or press is None:
        raise ConfigError(f"{spec.spec!r}: kvpress {reason or 'has no press for it'}.")
    return press.chain(spec.params, critical=spec.critical)


def _unfit(spec: VariantSpec) -> str:
    """Say what kvpress lacks for a variant, to come after its name; empty if nothing."""
    press = spec.method.press
    has_critical = press is not None and press.scores and spec.selector is CRITICAL
    if press is None or (spec.critical and not has_critical):
        return "has no press for it"
    if spec.params.keys() & (spec.method.options().keys() | {"protected"}):
        return "has no store, layout, protected passages, compaction or parts of another method"
    passed = press.parameters | {"alpha", "epsilon", "preset", "budget"}
    fixed = {"norm": "on", "group": "mean", "sinks": 0}
    parameters = spec.method.parameters(spec.selector)
    for name, value in spec.params.items():
        only = fixed.get(name, parameters[name].kvpress)
        if name not in passed and only not in (None, value):
            return f"has only {name}={only}; leave it out"
    return ""


def _written(text: str) -> Chain:
    problem = (
        f"{text[:60]!r} is no call of presses; write for instance "
        "AdaKVPress(SnapKVPress(window_size=32), alpha_safeguard=0.1)."
    )
    if len(text) > _MAX_CHARS:
        raise ConfigError(problem)
    try:
        return _chain(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(problem) from None


def _chain(node: ast.AST) -> Chain:
    """The presses of a call, from the outermost in; ValueError for anything but presses."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) < 2):
        raise ValueError
    own = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
    if {"None", "press", "compression_ratio"} & own.keys() or not all(
        isinstance(value, Argument) for value in own.values()
    ):
        raise ValueError
    inner = _chain(node.args[0]) if node.args else ()
    return ((node.func.id, own), *inner)
