"""`make gpu`: the tests and figures of a CUDA device, written to docs/performance_gpu.md.

It takes torch, transformers, numpy and psutil, and pytest for the tests (gguf for one file of
them); no Gradio, no SQLAlchemy, and it installs nothing. The model has the shape of
Llama-3.1-8B and random bfloat16 weights: they cost what trained ones do; what is kept and generated
means nothing. transformers decodes the same shape in the same process, and kvpress, which takes an
older transformers, in one of its own: KVPRESS_PYTHON names its Python. Nothing new is begun after
nine minutes. `--small` runs it all on the CPU with a tiny model and writes nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import IO, cast

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "performance_gpu.md"
MARK = "## Figures"  # of the document, everything from here on is rewritten
NEEDED = ("torch", "transformers", "numpy", "psutil")
lacking = [name for name in NEEDED if find_spec(name) is None]
if lacking:
    sys.exit(
        f"make gpu needs {', '.join(lacking)} in this environment; install that and try again."
    )

import torch

from benchmarks.gpu_cells import (
    FULL,
    MASKED,
    SMALL,
    WHOLE,
    Cell,
    Device,
    Setting,
    Transformers,
    build,
    cell,
    forget,
    measured,
    planned,
    reason,
    seconds,
    step_table,
    weight_bytes,
)
from ckv_core.base.devices import is_cuda_like
from ckv_core.engine.cache.slots import Keep
from ckv_core.engine.choose import row_plan
from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.generation import Generation, RunningRows
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.engine.rows import RowPlan, prompt_rows
from ckv_core.engine.select import select
from ckv_core.models.loaded import LoadedModel, wrap_model
from ckv_core.records.variants import VariantSpec
from tests.factories.models import drained, tiny_tokenizer


@dataclass(frozen=True)
class Reading:
    """Seconds to read a prompt, and those that each method adds before the first token.

    The methods share what they score by: the first to ask for it pays.
    """

    tokens: int
    prefill: float
    floor: float
    attention: float  # share of the floor
    chosen: tuple[float, ...]  # of the methods, at 10 %

    def shown(self) -> tuple[str, ...]:
        return (
            f"{self.tokens:,}",
            f"{1000 * self.prefill:,.0f}",
            f"{1000 * self.floor:,.0f}",
            f"{self.attention:.0%}",
            f"{self.prefill / self.floor:.2f}",
            *(f"{1000 * each:,.0f}" for each in self.chosen),
        )


def reading_header(setting: Setting) -> tuple[str, ...]:
    """Names the columns of `Reading.shown`."""
    methods = (f"{method} adds ms" for method in setting.methods)
    return "prompt tokens", "prefill ms", "floor ms", "of it attention", "prefill / floor", *methods


class Ours:
    """The lab's engine: every row has tensors of its own, the full cache's too."""

    name = "the lab"

    def __init__(self, setting: Setting, loaded: LoadedModel, length: int) -> None:
        self.loaded, self._capacity = loaded, setting.warm + setting.steps + 4
        self._specs = {each: VariantSpec.parse(each) for each in setting.methods}
        ids = torch.randint(4, setting.shape["vocab_size"], (length,)).tolist()
        needs = Needs.of(self._specs.values())
        self.prefill_s = seconds(lambda: self._read(ids, needs), setting.device)

    def _read(self, ids: list[int], needs: Needs) -> None:
        self._prefilled: Prefill = drained(prefill(self.loaded, ids, needs, lambda: False))

    @lru_cache(maxsize=1)  # noqa: B019 - a side lives for one length
    def plan(self, method: str, share: float) -> RowPlan:
        """The entries that one row keeps in each layer."""
        if method == FULL:
            heads = self.loaded.info.kv_heads
            everything = torch.ones(heads, self._prefilled.prompt_len, dtype=torch.bool)
            keep = Keep(everything.to(self.loaded.device))  # a mask: not the prefill's own tensors
            return RowPlan([keep] * self.loaded.info.layers)
        budget = int(share * self._prefilled.prompt_len)
        spec = self._specs[method]
        return row_plan(spec, select(spec, self._prefilled, budget), self._prefilled)

    def row_bytes(self, method: str, share: float) -> int:
        rows = prompt_rows(self._prefilled, [self.plan(method, share)])
        return sum(rows.row_bytes(layer, 0) for layer in range(self.loaded.info.layers))

    def steps(self, method: str, share: float, rows: int) -> Callable[[], object]:
        held = prompt_rows(self._prefilled, [self.plan(method, share)] * rows)
        context = DecodeContext(self.loaded, held.start(self._capacity), lambda: False)
        endless = Generation(self.loaded.tokenizer, rows, 10**6, frozenset())
        return RunningRows(Decoder(self.loaded, context), [endless], [5] * rows).step


def ours(setting: Setting, device: Device) -> Iterator[Cell | Reading]:
    """The lab's figures of every length, and what each method adds to reading it."""
    loaded = wrap_model(build(setting), tiny_tokenizer(), name="random", sha256="0" * 64)
    weights = weight_bytes(loaded.model)

    def chosen_in(side: Ours) -> list[float]:
        return [seconds(partial(side.plan, each, 0.1), setting.device) for each in setting.methods]

    chosen_in(Ours(setting, loaded, setting.lengths[0] // 2))  # loads the kernels
    for tokens in setting.lengths:
        try:
            side = Ours(setting, loaded, tokens)
            chosen = chosen_in(side)
            linear, attention = prefill_flops(loaded, tokens)
            floor = (linear + attention) / device.flops
            share = attention / (linear + attention)
            yield Reading(tokens, side.prefill_s, floor, share, tuple(chosen))
        except Exception as error:  # the other lengths are measured
            yield Cell(Ours.name, FULL, tokens, 1.0, 1, reason=reason(error))
            continue
        for each in planned(setting, Ours.name, tokens, setting.methods):
            yield cell(setting, device, side, weights, each)
        del side


def rivals(setting: Setting, device: Device) -> Iterator[Cell]:
    """The full cache by transformers, with PyTorch's and with FlashAttention's kernel."""
    model = build(setting)
    weights = weight_bytes(model)
    for tokens, kernel in product(setting.lengths, ("sdpa", "flash_attention_2")):
        name = f"transformers, {kernel}"
        if kernel != "sdpa" and find_spec("flash_attn") is None:
            yield Cell(name, FULL, tokens, 1.0, 1, reason="flash_attn is not installed")
            continue
        for each in planned(setting, name, tokens, ()):
            yield cell(setting, device, Transformers(model, tokens, kernel), weights, each)


def masked(setting: Setting, device: Device) -> Iterator[Cell]:
    """The cells of kvpress, in a process of KVPRESS_PYTHON."""
    python = os.environ.get("KVPRESS_PYTHON")
    if not python:
        yield Cell(MASKED, FULL, setting.lengths[0], 1.0, 1, reason="KVPRESS_PYTHON is not set")
        return
    small = () if is_cuda_like(setting.device) else ("--small",)
    command = [python, "-m", "benchmarks.gpu_cells", *small, json.dumps(asdict(device))]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in cast("IO[str]", process.stdout):
            yield Cell(**json.loads(line))
    if process.returncode:
        why = f"{python} ended with status {process.returncode}"
        yield Cell(MASKED, FULL, setting.lengths[0], 1.0, 1, reason=why)


def prefill_flops(loaded: LoadedModel, tokens: int) -> tuple[float, float]:
    """Of the blocks' linear maps, and of causal attention."""
    info = loaded.info
    weights = sum(part.numel() for layer in loaded.layers for part in layer.parameters())
    pairs = tokens * tokens / 2
    return 2.0 * weights * tokens, 4.0 * info.layers * info.query_heads * info.head_dim * pairs


def tests() -> str:
    """The summary of the tests that want a CUDA device."""
    if find_spec("pytest") is None:
        return "not run, for pytest is not in this environment"
    marked = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if _is_marked(path)]
    # The tests' common set-up is for browsers and databases, which these do not need.
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--noconftest", *map(str, marked)]
    command.append("--continue-on-collection-errors")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout, file=sys.stderr)
    return (done.stdout.strip().splitlines() or ["pytest printed nothing"])[-1].strip("= ")


def _is_marked(path: Path) -> bool:
    return "pytest.mark.gpu" in path.read_text(encoding="utf-8")


def in_time(lines: Iterable[Cell | Reading], until: float) -> Iterator[Cell | Reading]:
    """Begin no further line after a time, and say so."""
    for line in lines:
        yield line
        if time.monotonic() > until:
            yield Cell("", "", line.tokens, 0.0, 0, reason="the time was up: nothing after this")
            return


@torch.inference_mode()
def report(setting: Setting, tested: Callable[[], str]) -> str:
    """All figures as Markdown; `tested` runs the tests and says how they ended."""
    start = time.monotonic()
    summary, found = tested(), measured(setting)
    lines = [*in_time(ours(setting, found), start + 0.65 * setting.seconds)]
    forget(setting.device)
    lines += in_time(rivals(setting, found), start + 0.8 * setting.seconds)
    forget(setting.device)
    lines += in_time(masked(setting, found), start + setting.seconds)
    packages = ("torch", "transformers", "flash_attn")
    versions = [f"{each} {version(each)}" for each in packages if find_spec(each)]
    read = [each.shown() for each in lines if isinstance(each, Reading)]
    steps = step_table((each for each in lines if isinstance(each, Cell)), setting.batches)
    sections = []
    for header, *rows in ([reading_header(setting), *read], steps):
        cells = (header, ["---"] * len(header), *rows)
        sections += ["", *("| " + " | ".join(row) + " |" for row in cells)]
    return "\n".join(
        [
            MARK,
            "",
            f"{datetime.now(tz=UTC):%Y-%m-%d}; {found.name}; {', '.join(versions)}. A copy moves "
            f"{found.bandwidth / 1e9:,.0f} GB/s, a bfloat16 product does "
            f"{found.flops / 1e12:,.1f} TFLOPS. One run a cell, {setting.steps} steps, "
            "each in milliseconds (times the floor).",
            "",
            f"GPU tests: {summary}.",
            *sections,
            "",
        ]
    )


def main() -> None:
    """Measure, print, and write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="on the CPU, to try this out")
    parser.add_argument("--seconds", type=float, default=WHOLE.seconds, help="nothing begins later")
    given = parser.parse_args()
    is_small, whole = given.small, replace(WHOLE, seconds=given.seconds)
    if not is_small and not torch.cuda.is_available():
        sys.exit("make gpu needs a CUDA device that this PyTorch can use; there is none here.")
    written = report(SMALL, lambda: "none") if is_small else report(whole, tests)
    print(written)
    if not is_small:
        kept = DOCUMENT.read_text(encoding="utf-8").partition(MARK)[0]
        DOCUMENT.write_text(kept + written, encoding="utf-8")


if __name__ == "__main__":
    main()
