"""`make gpu`: the tests and figures of a CUDA device, written to docs/performance_gpu.md.

It takes torch, transformers, numpy and psutil, and pytest for the tests (gguf for one of them);
no Gradio, no SQLAlchemy, and it installs nothing. The model has the shape of
Llama-3.1-8B and random bfloat16 weights: they cost what trained ones do; what is kept and generated
means nothing. transformers, and kvpress where it is installed, decode the same shape in the same
process. Nothing new is begun after nine minutes. `--small` runs it all on the CPU with a tiny model
and writes nothing.
"""

import argparse
import gc
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path

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
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, PreTrainedModel

from ckv_core.base.device_memory import available_bytes
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

WARM, STEPS = 4, 32  # decoding steps before the clock, and on it
METHODS = ("knorm", "snapkv", "adakv", "adakv:store=int4")
SHARES = (0.5, 0.2, 0.1)  # of the prompt, kept
FULL = "full"
KVPRESS = {"knorm": "KnormPress", "snapkv": "SnapKVPress", "adakv": "AdaKVPress"}


@dataclass(frozen=True)
class Setting:
    """The shape, lengths and batches to measure, and the device."""

    device: torch.device
    shape: dict[str, int]
    lengths: tuple[int, ...]
    square: int  # side of the matrices that the device's speed is measured with
    seconds: float  # after which nothing new is begun
    batches: tuple[int, ...] = (1, 8)  # and the largest that fits,
    most: int = 256  # which is sought up to here


LLAMA_8B = {
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


WHOLE = Setting(torch.device("cuda"), LLAMA_8B, (32_768, 131_072), 8_192, 540.0)
SMALL = Setting(torch.device("cpu"), TINY, (150, 300), 64, 60.0, (1, 2), 3)


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


def measured(setting: Setting) -> Device:
    """Bandwidth and speed as PyTorch reaches them; a roofline of the data sheet is out of reach."""
    device, size = setting.device, setting.square
    source = torch.empty(8 * size * size, dtype=torch.uint8, device=device)
    square = torch.randn(size, size, device=device).to(torch.bfloat16)

    def best(work: Callable[[], Tensor]) -> float:
        return min(_seconds(work, device) for _ in range(6))

    copied, product = best(source.clone), best(lambda: square @ square)
    name = torch.cuda.get_device_name(device) if is_cuda_like(device) else "CPU"
    return Device(name, 2 * source.nbytes / copied, 2 * size**3 / product)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if is_cuda_like(device):
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Cell:
    """One method at one budget and batch, or why there is no figure."""

    side: str
    method: str
    tokens: int
    share: float  # of the prompt, kept
    rows: int
    cache: int = 0  # bytes that a row holds of the prompt
    step_ms: float = 0.0
    floor_ms: float = 0.0
    peak: int | None = None  # bytes, while the steps ran
    waits: int | None = None  # how often the host waited in one step, as CUDA tells
    reason: str = ""

    def shown(self) -> tuple[str, ...]:
        first = (f"{self.tokens:,}", self.side, self.method, f"{self.share:.0%}", f"{self.rows:,}")
        if self.reason:
            return (*first, self.reason, *[""] * (len(HEADER) - len(first) - 1))
        return (
            *first,
            f"{self.step_ms:.2f}",
            f"{self.floor_ms:.2f}",
            f"{self.step_ms / self.floor_ms:.2f}",
            f"{1000 * self.rows / self.step_ms:,.0f}",
            f"{self.cache / 2**30:.2f}",
            "not known" if self.peak is None else f"{self.peak / 2**30:.1f}",
            "not known" if self.waits is None else str(self.waits),
        )


HEADER = (
    *("prompt tokens", "side", "method", "kept", "batch", "step ms", "floor ms", "step / floor"),
    *("tokens/s", "cache GiB a row", "peak GiB", "host waits a step"),
)


@dataclass(frozen=True)
class Reading:
    """Seconds to read a prompt, and those that each method adds before the first token.

    The methods share what they score by: the first to ask for it pays.
    """

    tokens: int
    prefill: float
    floor: float
    attention: float  # share of the floor
    chosen: tuple[float, ...]  # of METHODS, at 10 %

    def shown(self) -> tuple[str, ...]:
        return (
            f"{self.tokens:,}",
            f"{1000 * self.prefill:,.0f}",
            f"{1000 * self.floor:,.0f}",
            f"{self.attention:.0%}",
            f"{self.prefill / self.floor:.2f}",
            *(f"{1000 * each:,.0f}" for each in self.chosen),
        )


READING = (
    *("prompt tokens", "prefill ms", "floor ms", "of it attention", "prefill / floor"),
    *(f"{method} adds ms" for method in METHODS),
)


class Ours:
    """The lab's engine: every row has tensors of its own, the full cache's too."""

    name = "the lab"

    def __init__(self, setting: Setting, loaded: LoadedModel, length: int) -> None:
        self.loaded, self._specs = loaded, {each: VariantSpec.parse(each) for each in METHODS}
        ids = torch.randint(4, setting.shape["vocab_size"], (length,)).tolist()
        needs = Needs.of(self._specs.values())
        self.prefill_s = _seconds(lambda: self._read(ids, needs), setting.device)

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
        context = DecodeContext(self.loaded, held.start(WARM + STEPS + 4), lambda: False)
        endless = Generation(self.loaded.tokenizer, rows, 10**6, frozenset())
        return RunningRows(Decoder(self.loaded, context), [endless], [5] * rows).step


class Transformers:
    """transformers' own model and cache; `pressed` by kvpress while the prompt is read."""

    def __init__(
        self, model: PreTrainedModel, length: int, kernel: str = "sdpa", *, pressed: bool = False
    ) -> None:
        self._model, self._length, self._kernel = model, length, kernel
        self._is_pressed = pressed

    def row_bytes(self, method: str, share: float) -> int:
        config = self._model.config
        width = 2 * config.num_key_value_heads * config.head_dim * self._model.dtype.itemsize
        kept = self._length if method == "adakv" else int(self._length * share)  # it only masks
        return config.num_hidden_layers * kept * width

    def steps(self, method: str, share: float, rows: int) -> Callable[[], object]:
        self._model.set_attn_implementation(self._kernel)
        cache = self._pressed(method, share) if self._is_pressed else self._filled(rows)
        ids = torch.full((rows, 1), 5, device=self._model.device)
        at = self._length

        def step() -> None:
            nonlocal at
            where = torch.full((rows, 1), at, device=ids.device)
            logits = self._model(input_ids=ids, past_key_values=cache, position_ids=where).logits
            ids.copy_(logits[:, -1].argmax(-1, keepdim=True))
            at += 1

        return step

    def _filled(self, rows: int) -> DynamicCache:
        """Random entries: what a step costs does not depend on them."""
        config, cache = self._model.config, DynamicCache(config=self._model.config)
        shape = (rows, config.num_key_value_heads, self._length, config.head_dim)
        for layer in range(config.num_hidden_layers):
            keys, values = (
                torch.randn(shape, device=self._model.device, dtype=self._model.dtype)
                for _ in range(2)
            )
            cache.update(keys, values, layer)
        return cache

    def _pressed(self, method: str, share: float) -> DynamicCache:
        import kvpress  # noqa: PLC0415 - where it is installed

        press = getattr(kvpress, KVPRESS[method])
        if method == "knorm":
            made = press(compression_ratio=1 - share)
        else:
            made = kvpress.SnapKVPress(compression_ratio=1 - share, window_size=32, kernel_size=7)
            made = press(made) if method == "adakv" else made
        cache = DynamicCache(config=self._model.config)
        ids = torch.randint(4, 500, (1, self._length), device=self._model.device)
        with made(self._model):
            self._model.model(input_ids=ids, past_key_values=cache)
        return cache


def cell(
    setting: Setting, device: Device, side: Ours | Transformers, weights: int, planned: Cell
) -> Cell:
    """Measure one cell; `rows` 0 asks for the largest batch that fits."""
    _forget(setting.device)
    try:
        cache = side.row_bytes(planned.method, planned.share)
        rows = planned.rows or largest(setting, cache)
        planned = replace(planned, rows=rows, cache=cache)
        step = side.steps(planned.method, planned.share, rows)
        for _ in range(WARM):
            step()
        if is_cuda_like(setting.device):
            torch.cuda.reset_peak_memory_stats(setting.device)
        took = _seconds(lambda: [step() for _ in range(STEPS)], setting.device)
        peak = None
        if is_cuda_like(setting.device):
            peak = torch.cuda.max_memory_allocated(setting.device)
        return replace(
            planned,
            step_ms=1000 * took / STEPS,
            floor_ms=1000 * (weights + rows * cache) / device.bandwidth,
            peak=peak,
            waits=waits_of(step, setting.device),
        )
    except Exception as error:  # a fault of any kind leaves the other cells to be measured
        return replace(planned, reason=_reason(error))


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].replace("|", "/")[:160]


def largest(setting: Setting, row_bytes: int) -> int:
    """Rows that fit into what is free, beside their newest entries, logits and one layer twice."""
    shape = setting.shape
    width = 4 * shape["hidden_size"] // shape["num_attention_heads"] * shape["num_key_value_heads"]
    tail = shape["num_hidden_layers"] * (WARM + STEPS + 4) * width
    row = row_bytes * (1 + 2 / shape["num_hidden_layers"]) + tail + 24 * shape["vocab_size"]
    return max(1, min(setting.most, int(0.92 * available_bytes(setting.device) / row)))


def waits_of(step: Callable[[], object], device: torch.device) -> int | None:
    """How often the host waits within a step, where CUDA tells."""
    if not is_cuda_like(device):
        return None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # PyTorch does not warn of the wait for the tokens, because the code requests it by name.
    return 1 + sum("synchron" in str(each.message) for each in warned)


def _forget(device: torch.device) -> None:
    gc.collect()
    if is_cuda_like(device):
        torch.cuda.empty_cache()


def planned(setting: Setting, side: str, tokens: int, methods: Iterable[str]) -> list[Cell]:
    """Cells of one length; the full cache first, then each method from the smallest budget up."""
    batches = (*setting.batches, 0)
    shares = [(FULL, 1.0), *((name, share) for share in SHARES[::-1] for name in methods)]
    return [Cell(side, name, tokens, share, rows) for name, share in shares for rows in batches]


def build(setting: Setting) -> PreTrainedModel:
    """Random bfloat16 weights, made on the device."""
    config = LlamaConfig(**setting.shape, max_position_embeddings=2 * max(setting.lengths))
    with torch.device(setting.device):  # in float32 they would take twice the room
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    return model.eval()


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes that each step reads beside the caches: all weights but the embedding's."""
    embedding = model.get_input_embeddings().parameters()
    return sum(each.nbytes for each in model.parameters()) - sum(each.nbytes for each in embedding)


def ours(setting: Setting, device: Device) -> Iterator[Cell | Reading]:
    """The lab's figures of every length, and what each method adds to reading it."""
    loaded = wrap_model(build(setting), tiny_tokenizer(), name="random", sha256="0" * 64)
    weights = weight_bytes(loaded.model)
    for tokens in setting.lengths:
        try:
            side = Ours(setting, loaded, tokens)
            chosen = [_seconds(partial(side.plan, each, 0.1), setting.device) for each in METHODS]
            linear, attention = prefill_flops(loaded, tokens)
            floor = (linear + attention) / device.flops
            share = attention / (linear + attention)
            yield Reading(tokens, side.prefill_s, floor, share, tuple(chosen))
        except Exception as error:  # the other lengths are measured
            yield Cell(Ours.name, FULL, tokens, 1.0, 1, reason=_reason(error))
            continue
        for each in planned(setting, Ours.name, tokens, METHODS):
            yield cell(setting, device, side, weights, each)
        del side


def rivals(setting: Setting, device: Device) -> Iterator[Cell]:
    """The same of transformers, with PyTorch's and with FlashAttention's kernel, and kvpress."""
    model = build(setting)
    weights = weight_bytes(model)
    sides = (
        ("transformers, SDPA", "transformers", (), setting.batches),
        ("transformers, FA2", "flash_attn", (), setting.batches),
        ("kvpress, masked", "kvpress", KVPRESS, ()),
    )
    for tokens, (name, package, methods, batches) in product(setting.lengths, sides):
        if find_spec(package) is None:
            yield Cell(name, FULL, tokens, 1.0, 1, reason=f"{package} is not installed")
            continue
        kernel = "flash_attention_2" if package == "flash_attn" else "sdpa"
        for each in planned(replace(setting, batches=batches), name, tokens, methods):
            if methods and each.method == FULL:
                continue  # that is transformers' own
            side = Transformers(model, tokens, kernel, pressed=bool(methods))
            one = replace(each, rows=1) if methods else each
            yield cell(setting, device, side, weights, one)


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
    _forget(setting.device)
    lines += in_time(rivals(setting, found), start + setting.seconds)
    packages = ("torch", "transformers", "flash_attn", "kvpress")
    versions = [f"{each} {version(each)}" for each in packages if find_spec(each)]
    sections = []
    for header, kind in ((READING, Reading), (HEADER, Cell)):
        rows = [each.shown() for each in lines if isinstance(each, kind)]
        cells = (header, ["---"] * len(header), *rows)
        sections += ["", *("| " + " | ".join(row) + " |" for row in cells)]
    return "\n".join(
        [
            MARK,
            "",
            f"{datetime.now(tz=UTC):%Y-%m-%d}; {found.name}; {', '.join(versions)}. A copy moves "
            f"{found.bandwidth / 1e9:,.0f} GB/s, a bfloat16 product does "
            f"{found.flops / 1e12:,.1f} TFLOPS. One run a cell, {STEPS} steps.",
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
    is_small = parser.parse_args().small
    if not is_small and not torch.cuda.is_available():
        sys.exit("make gpu needs a CUDA device that this PyTorch can use; there is none here.")
    written = report(SMALL, lambda: "none") if is_small else report(WHOLE, tests)
    print(written)
    if not is_small:
        kept = DOCUMENT.read_text(encoding="utf-8").partition(MARK)[0]
        DOCUMENT.write_text(kept + written, encoding="utf-8")


if __name__ == "__main__":
    main()
