"""The cells of `make gpu`: one method at one budget and batch, and transformers' and kvpress's own.

Nothing here needs the engine, for kvpress takes an older transformers than it: run as a script,
this file prints the cells of kvpress, a JSON object a line.
"""

import argparse
import gc
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Protocol

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, PreTrainedModel

from ckv_core.base.device_memory import available_bytes
from ckv_core.base.devices import is_cuda_like

FULL = "full"
MASKED = "kvpress, masked"
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
    most: int = 1_024  # which is sought up to here
    methods: tuple[str, ...] = ("knorm", "snapkv", "adakv", "adakv:store=int4")
    shares: tuple[float, ...] = (0.5, 0.2, 0.1)  # of the prompt, kept
    warm: int = 6  # decoding steps before the clock, until they are replayed as a CUDA graph,
    steps: int = 32  # and on it


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
    """The speeds that were measured on the device.

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
        return min(seconds(work, device) for _ in range(6))

    copied, product = best(source.clone), best(lambda: square @ square)
    name = torch.cuda.get_device_name(device) if is_cuda_like(device) else "CPU"
    return Device(name, 2 * source.nbytes / copied, 2 * size**3 / product)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    wait(device)
    start = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - start


def wait(device: torch.device) -> None:
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

    def shown(self, *, with_rows: bool) -> str:
        """A cell of a table: milliseconds (times the floor), and notes."""
        rows = f"{self.rows:,}: " if with_rows and self.rows else ""
        if self.reason:
            return rows + self.reason
        notes = [f"{self.step_ms / self.floor_ms:.2f}"]
        if with_rows and self.peak is not None:
            notes.append(f"{self.peak / 2**30:.0f} GiB")
        if (self.waits or 0) > 1:
            notes.append(f"{self.waits} waits")
        return f"{rows}{self.step_ms:.2f} ({', '.join(notes)})"


def step_table(cells: Iterable[Cell], batches: Sequence[int]) -> list[tuple[str, ...]]:
    """A header, and a row per length, side, method and share: its steps by number of rows."""
    steps: dict[tuple[str, ...], dict[int, str]] = {}
    sizes: dict[tuple[str, ...], str] = {}
    for each in cells:
        key = (f"{each.tokens:,}", each.side, each.method, f"{each.share:.0%}")
        column = each.rows if each.rows in batches else 0
        steps.setdefault(key, {})[column] = each.shown(with_rows=not column)
        if each.cache:
            sizes[key] = f"{each.cache / 2**30:.2f}"
    counts = (f"{rows} row{'s' * (rows > 1)}: ms" for rows in batches)
    header = ("prompt tokens", "side", "method", "kept", "GiB a row", *counts, "most rows: ms")
    return [
        header,
        *(
            (*key, sizes.get(key, ""), *(row.get(column, "") for column in (*batches, 0)))
            for key, row in steps.items()
        ),
    ]


class Side(Protocol):
    """An implementation that decodes rows of one prompt."""

    def row_bytes(self, method: str, share: float) -> int:
        """Bytes that a row holds of the prompt."""

    def steps(self, method: str, share: float, rows: int) -> Callable[[], object]:
        """A call of the answer decodes one token of every row."""


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


def cell(setting: Setting, device: Device, side: Side, weights: int, planned: Cell) -> Cell:
    """Measure one cell; `rows` 0 asks for the largest batch that fits."""
    forget(setting.device)
    try:
        cache = side.row_bytes(planned.method, planned.share)
        rows = planned.rows or largest(setting, cache)
        planned = replace(planned, rows=rows, cache=cache)
        step = side.steps(planned.method, planned.share, rows)
        for _ in range(setting.warm):
            step()
        if is_cuda_like(setting.device):
            torch.cuda.reset_peak_memory_stats(setting.device)
        took = seconds(lambda: [step() for _ in range(setting.steps)], setting.device)
        peak = None
        if is_cuda_like(setting.device):
            peak = torch.cuda.max_memory_allocated(setting.device)
        return replace(
            planned,
            step_ms=1000 * took / setting.steps,
            floor_ms=1000 * (weights + rows * cache) / device.bandwidth,
            peak=peak,
            waits=waits_of(step, setting.device),
        )
    except Exception as error:  # a fault of any kind leaves the other cells to be measured
        return replace(planned, reason=reason(error))


def reason(error: Exception) -> str:
    first = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0]
    return first.replace("|", "/")[:160]


def largest(setting: Setting, row_bytes: int) -> int:
    """Rows that fit into what is free, beside their newest entries, logits and one layer twice."""
    shape = setting.shape
    width = 4 * shape["hidden_size"] // shape["num_attention_heads"] * shape["num_key_value_heads"]
    tail = shape["num_hidden_layers"] * (setting.warm + setting.steps + 4) * width
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
    return 1 + sum("called a synchronizing" in str(each.message) for each in warned)


def forget(device: torch.device) -> None:
    gc.collect()
    if is_cuda_like(device):
        torch.cuda.empty_cache()


def planned(setting: Setting, side: str, tokens: int, methods: Iterable[str]) -> list[Cell]:
    """Cells of one length; the full cache first, then each method from the smallest budget up."""
    batches = (*setting.batches, 0)
    shares = [(FULL, 1.0), *((name, share) for share in setting.shares[::-1] for name in methods)]
    cells = (Cell(side, name, tokens, share, rows) for name, share in shares for rows in batches)
    # To encode the largest batch of a store takes long: it is done once.
    least = setting.shares[-1]
    return [
        each for each in cells if each.rows or "store" not in each.method or each.share == least
    ]


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


def kvpress_cells(setting: Setting, device: Device) -> Iterator[Cell]:
    """kvpress at batch 1, which masks; the longest prompt at the smallest budget alone."""
    model = build(setting)
    weights = weight_bytes(model)
    for tokens in setting.lengths:
        shares = setting.shares[-1:] if tokens > setting.lengths[0] else setting.shares
        for method, share in product(KVPRESS, shares[::-1]):
            side = Transformers(model, tokens, pressed=True)
            yield cell(setting, device, side, weights, Cell(MASKED, method, tokens, share, 1))


def main() -> None:
    """Print the cells of kvpress, a JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="on the CPU, to try this out")
    parser.add_argument("device", help="as JSON: name, bandwidth and flops")
    given = parser.parse_args()
    with torch.inference_mode():
        for each in kvpress_cells(
            SMALL if given.small else WHOLE, Device(**json.loads(given.device))
        ):
            sys.stdout.write(json.dumps(asdict(each)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
