"""The largest batch that really fits under a limit of memory, beside the one that `ckv plan` says.

For each number a process of its own loads the default model, forbids itself more memory than the
plan has beyond the weights, holds all requests but one, reads that one's prompt beside them and
decodes all together.

    python benchmarks/capacity.py [--memory 2GiB] [--prompt 1000] [--output 64] [--variant SPEC]...
"""

import argparse
import resource
import subprocess
import sys
from pathlib import Path

import torch

from ckv_core.base.device_memory import give_back
from ckv_core.engine.choose import row_plan
from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.engine.rows import PromptRows, Rows, prompt_rows
from ckv_core.engine.select import select
from ckv_core.experiment.plan import Setting, parse_bytes, plan
from ckv_core.models.catalog import planned_shape
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.loading import load_model
from ckv_core.models.shape import CHUNK
from ckv_core.records.run_request import DEFAULT_MODEL
from ckv_core.records.variants import VariantSpec

VARIANTS = ("full", "snapkv:budget=50%", "adakv:budget=25%", "snapkv:budget=50%,store=int8")
DOES_NOT_FIT = 3
STEPS = 2  # room for the whole output is there from the first one on


def _read(loaded: LoadedModel, spec: VariantSpec, tokens: int) -> Prefill:
    """One prompt of random tokens."""
    ids = torch.randint(1000, 40_000, (tokens,)).tolist()
    work = prefill(loaded, ids, Needs.of([spec]), lambda: False)
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


def _compressed(spec: VariantSpec, prompt: Prefill, budget: int) -> PromptRows:
    return prompt_rows(prompt, [row_plan(spec, select(spec, prompt, budget), prompt)])


def _held_bytes() -> int:
    """Bytes of this process that the limit counts."""
    line = next(
        each for each in Path("/proc/self/status").read_text().splitlines() if "VmData" in each
    )
    return int(line.split()[1]) * 1024


@torch.inference_mode()
def serve(count: int, text: str, setting: Setting, beyond: int, budget: int) -> None:
    """Hold and decode so many requests with `beyond` bytes beside the weights."""
    torch.set_num_threads(1)
    loaded, spec = load_model(DEFAULT_MODEL, "cpu", "float32"), VariantSpec.parse(text)
    give_back()
    limit = _held_bytes() + beyond
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    parts: list[Rows] = []
    first: Prefill | None = None
    for place in range(count):
        if place == count - 1 or not spec.method.evicts:
            first = None  # the last prompt is read beside all others
        if first is None:
            give_back()
            first = _read(loaded, spec, setting.prompt)
        parts += _compressed(spec, first, budget).start(setting.output, place)
    first = None
    give_back()
    decoder = Decoder(loaded, DecodeContext(loaded, parts, lambda: False))
    for _ in range(STEPS):
        decoder.feed(torch.full((count, 1), 7))


def _fits(count: int, arguments: list[str]) -> bool:
    done = subprocess.run(
        [sys.executable, __file__, "--serve", str(count), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, DOES_NOT_FIT):
        print(f"  {count}: ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.returncode == 0


def _largest(planned: int, arguments: list[str]) -> int:
    """By bisection around the plan."""
    low, high = 0, max(2, planned + planned // 4 + 1)
    while high - low > 1:
        middle = planned if low == 0 and planned < high else (low + high) // 2
        low, high = (middle, high) if _fits(middle, arguments) else (low, middle)
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--prompt", type=int, default=1_000)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--variant", action="append")
    parser.add_argument("--serve", type=int, default=0, help="in the process of one trial")
    given = parser.parse_args()
    setting = Setting(
        memory=parse_bytes(given.memory, "memory"),
        prompt=given.prompt,
        output=given.output,
        dtype="float32",
        chunk=CHUNK,
    )
    shape = planned_shape(DEFAULT_MODEL)
    for text in given.variant or VARIANTS:
        row = plan(shape, setting, [VariantSpec.parse(text)])[-1]
        if given.serve:
            try:
                serve(given.serve, text, setting, setting.memory - row.weights_bytes, row.budget)
            except (RuntimeError, MemoryError) as error:
                print(error, file=sys.stderr)
                sys.exit(DOES_NOT_FIT)
            continue
        sizes = (given.memory, str(given.prompt), str(given.output), text)
        names = ("--memory", "--prompt", "--output", "--variant")
        arguments = [word for pair in zip(names, sizes, strict=True) for word in pair]
        real = _largest(row.requests, arguments)
        share = row.requests / real - 1 if real else float("nan")
        print(f"{text}: planned {row.requests} ({row.limited_by}), real {real}, off {share:+.1%}")


if __name__ == "__main__":
    main()
