"""Runs every method on the examples and writes what came out: `python -m tests.golden.record`."""

import json
import lzma
import zlib
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ckv_core.compare.compare import compare
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.loading import load_model
from ckv_core.request.compare_request import DEFAULT_MODEL, SCENARIOS, CompareRequest
from ckv_core.results.events import RunResult
from ckv_core.results.records import VariantResult

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "assets" / "examples"
RECORDED = Path(__file__).with_name("golden.json.xz")
NEW_TOKENS = 12
SCORED = ("snapkv", "pyramidkv", "adakv")
SELECTORS = ("", "+critical", "+critical:stage2=pooled", "+critical_auto")
VARIANTS = (
    "full",
    "streaming_llm",
    *(method + selector for method in SCORED for selector in SELECTORS),
    "adakv+critical:preset=kvpress,safeguard_rule=blend,stage1_counts_window=off",
    "snapkv+critical:sinks=4,pool=avg,group=max,norm=off,window=16",
)

Golden = dict[str, dict[str, Any]]


def examples() -> list[dict[str, Any]]:
    """The app's examples, as its index has them."""
    return list(json.loads((EXAMPLES / "index.json").read_text(encoding="utf-8")))


def measure(loaded: LoadedModel, example: dict[str, Any], scenario: str) -> Golden:
    """One run of all variants, by SPEC."""
    request = CompareRequest(
        context=(EXAMPLES / example["file"]).read_text(encoding="utf-8"),
        question=example["question"],
        scenario=scenario,  # type: ignore[arg-type]  # one of SCENARIOS
        variants=VARIANTS,
        defaults={"budget": "10%"},
        max_new_tokens=NEW_TOKENS,
    )
    result = RunResult()
    for event in compare(request, loaded):
        result.apply(event)
    return {variant.spec: _described(variant) for variant in result.variants}


def _described(variant: VariantResult) -> dict[str, Any]:
    """Tokens, and one checksum per layer of the kept set; arrays would be megabytes."""
    assert variant.receipt is not None
    layers = [] if variant.retained is None else variant.retained.mask()
    return {
        "tokens": list(variant.token_ids),
        "kept": variant.receipt.retained_entries,
        "layers": [zlib.crc32(np.packbits(layer).tobytes()) for layer in layers],
    }


def read() -> dict[str, Any]:
    """What was recorded."""
    return dict(json.loads(lzma.decompress(RECORDED.read_bytes())))


def runs() -> Iterator[tuple[str, dict[str, Any], str]]:
    """(name, example, scenario) of every run: the scenarios take turns."""
    for example, scenario in zip(examples(), cycle(SCENARIOS), strict=False):
        yield f"{Path(example['file']).stem}, {scenario}", example, scenario


def main() -> None:
    """Record all of it on one thread, as the tests run."""
    torch.set_num_threads(1)
    loaded = load_model(DEFAULT_MODEL, "cpu", "float32")
    found = {name: measure(loaded, example, scenario) for name, example, scenario in runs()}
    document = {"cpu": torch.backends.cpu.get_cpu_capability(), "runs": found}
    RECORDED.write_bytes(lzma.compress(json.dumps(document, sort_keys=True).encode()))


if __name__ == "__main__":
    main()
