"""`make gpu`: the tests and figures of a CUDA device, written to docs/performance_gpu.md.

It takes torch, transformers, numpy, psutil and platformdirs, and pytest for the tests (gguf for one
file of them); no Gradio, no SQLAlchemy, and it installs nothing. The model has the shape of
Llama-3.1-8B and random bfloat16 weights: they cost what trained ones do; what is kept and generated
means nothing. `--small` runs it all on the CPU with a tiny model and writes nothing.
"""

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "performance_gpu.md"
MARK = "## Figures"  # of the document, everything from here on is rewritten
NEEDED = ("torch", "transformers", "numpy", "psutil", "platformdirs")
lacking = [name for name in NEEDED if find_spec(name) is None]
if lacking:
    sys.exit(
        f"make gpu needs {', '.join(lacking)} in this environment; install that and try again."
    )

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.setting import NEW_TOKENS, VARIANTS
from ckv_core.engine.cache import slots
from ckv_core.engine.cache.varlen import usable_kernel
from ckv_core.engine.compare import compare
from ckv_core.engine.generation import RunningRows
from ckv_core.errors import CkvError
from ckv_core.models.loaded import LoadedModel, wrap_model
from ckv_core.records.events import RunResult
from ckv_core.records.run_request import RunRequest
from tests.factories.models import tiny_tokenizer

LENGTHS = (4_096, 32_768, 131_072)
SHAPE = {
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
}
SMALL_LENGTHS = (500, 1_500)
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


@dataclass(frozen=True)
class Device:
    """What the device was measured to do.

    Attributes:
        bandwidth: bytes a second, read and written by a copy.
        flops: a second, of a product of two square bfloat16 matrices.
    """

    name: str
    bandwidth: float
    flops: float


def measured(device: torch.device, size: int) -> Device:
    """Bandwidth and speed as PyTorch reaches them; a roofline of the data sheet is out of reach."""
    source = torch.empty(8 * size * size, dtype=torch.uint8, device=device)
    square = torch.randn(size, size, device=device).to(torch.bfloat16)
    copied = _seconds(source.clone, device)
    product = _seconds(lambda: square @ square, device)
    is_cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if is_cuda else "CPU"
    return Device(name, 2 * source.nbytes / copied, 2 * size**3 / product)


def _seconds(work: Callable[[], Tensor], device: torch.device) -> float:
    """The best of five, after one that warms up."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def build(device: str, shape: dict[str, int]) -> LoadedModel:
    """Random bfloat16 weights, made on the device."""
    config = LlamaConfig(**shape, max_position_embeddings=2 * LENGTHS[-1])
    with torch.device(device):  # in float32 they would take twice the room before they are cast
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return wrap_model(model, tiny_tokenizer(), name="Llama-3.1-8B shape", sha256="0" * 64)


class _Waits:
    """Counts the waits of the host within decoding steps, where CUDA tells of them."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.steps = self.waits = 0
        self._tells = loaded.device.type == "cuda"

    def step(self, rows: RunningRows, *given: Any) -> None:
        """In the place of `RunningRows.step`."""
        if not self._tells:
            _STEP(rows, *given)
            return
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                _STEP(rows, *given)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        self.steps += 1
        # PyTorch does not warn of the wait for the tokens, because the code requests it by name.
        self.waits += 1 + sum("synchron" in str(each.message) for each in warned)

    @property
    def shown(self) -> str:
        return f"{self.waits / self.steps:.1f}" if self.steps else "not measured here"


_STEP = RunningRows.step


def line(loaded: LoadedModel, device: Device, length: int) -> list[str]:
    """The cells of one length: a run whose steps are timed, one whose waits are counted."""
    result, waits = _run(loaded, length), _Waits(loaded)

    def step(rows: RunningRows, *given: Any) -> None:
        waits.step(rows, *given)

    with patch.object(RunningRows, "step", step):  # a function, or it would not get the rows
        _run(loaded, length, new_tokens=8)
    by_stacks = "no kernel"
    if usable_kernel(loaded.device, loaded.model.dtype, loaded.info.head_dim) is not None:
        with patch.object(slots, "usable_kernel", lambda *_kinds: None):
            by_stacks = f"{_step_ms(_run(loaded, length)):.1f}"
    assert result.prompt is not None
    tokens, times = result.prompt.tokens, result.timings_ms
    floor = _read_bytes(loaded, result) / device.bandwidth * 1000
    linear, attention = _prefill_flops(loaded, tokens)
    bound = (linear + attention) / device.flops * 1000
    step_ms, memory = _step_ms(result), result.memory
    return [
        f"{tokens:,}",
        f"{step_ms:.1f}",
        f"{floor:.1f}",
        f"{step_ms / floor:.2f}",
        by_stacks,
        waits.shown,
        f"{times['prefill']:,.0f}",
        f"{bound:,.0f}",
        f"{attention / (linear + attention):.0%}",
        f"{times['prefill'] / bound:.2f}",
        f"{times['score']:,.0f}",
        f"{times['select']:,.0f}",
        f"{memory['total'] / 2**30:.2f}",
        f"{memory['measured_peak'] / 2**30:.2f}" if "measured_peak" in memory else "not known",
    ]


def line_or_reason(loaded: LoadedModel, device: Device, length: int) -> list[str]:
    """Returns `line`'s row, or the reason where a length is refused; other lengths are measured."""
    try:
        return line(loaded, device, length)
    except (CkvError, torch.OutOfMemoryError) as error:
        reason = str(error).splitlines()[0].replace("|", "/")
        return [f"{length:,}", reason, *[""] * (len(HEADER) - 2)]


HEADER = (
    "prompt tokens",
    "step ms",
    "floor ms",
    "step / floor",
    "step by stacks ms",
    "host waits a step",
    "prefill ms",
    "floor ms",
    "of it attention",
    "prefill / floor",
    "score ms",
    "select ms",
    "estimate GiB",
    "measured peak GiB",
)


def _run(loaded: LoadedModel, length: int, new_tokens: int = NEW_TOKENS) -> RunResult:
    request = RunRequest(
        context="water, " * (length // 7),  # the tokenizer has a token per byte
        variants=VARIANTS,
        budgets=("10%",),
        max_new_tokens=new_tokens,
        ignore_eos=True,
    )
    result = RunResult()
    for event in compare(request, loaded):
        result.apply(event)
    return result


def _step_ms(result: RunResult) -> float:
    return result.timings_ms["decode"] / (NEW_TOKENS - 1)


def _read_bytes(loaded: LoadedModel, result: RunResult) -> int:
    """What a step cannot but read: all weights but the embedding's, and what every row keeps."""
    embedding = loaded.model.get_input_embeddings()
    weights = sum(part.nbytes for part in loaded.model.parameters())
    weights -= sum(part.nbytes for part in embedding.parameters())
    kept = [each.receipt.cache_bytes for each in result.variants if each.receipt is not None]
    return weights + sum(kept)


def _prefill_flops(loaded: LoadedModel, tokens: int) -> tuple[float, float]:
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


def report(small: bool) -> str:
    """All figures as Markdown."""
    device = torch.device("cpu" if small else "cuda")
    summary = tests()
    found = measured(device, 256 if small else 8_192)
    loaded = build(device.type, SMALL if small else SHAPE)
    _run(loaded, SMALL_LENGTHS[0])  # kernels are loaded, and tried, at their first use
    lengths = SMALL_LENGTHS if small else LENGTHS
    lines = [line_or_reason(loaded, found, length) for length in lengths]
    rows = ["| " + " | ".join(cells) + " |" for cells in (HEADER, ["---"] * len(HEADER), *lines)]
    return "\n".join(
        [
            MARK,
            "",
            f"{datetime.now(tz=UTC):%Y-%m-%d}; {found.name}; torch {torch.__version__}, "
            f"transformers {transformers.__version__}. A copy moves "
            f"{found.bandwidth / 1e9:,.0f} GB/s, a bfloat16 product does "
            f"{found.flops / 1e12:,.1f} TFLOPS. One run a length, {len(VARIANTS)} rows.",
            "",
            f"GPU tests: {summary}.",
            "",
            *rows,
            "",
        ]
    )


def main() -> None:
    """Measure, print, and write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="on the CPU, to try this out")
    small = parser.parse_args().small
    if not small and not torch.cuda.is_available():
        sys.exit("make gpu needs a CUDA device that this PyTorch can use; there is none here.")
    written = report(small)
    print(written)
    if not small:
        kept = DOCUMENT.read_text(encoding="utf-8").partition(MARK)[0]
        DOCUMENT.write_text(kept + written, encoding="utf-8")


if __name__ == "__main__":
    main()
