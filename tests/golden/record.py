"""Runs every method on examples and writes what came out: `python -m tests.golden.record`.

Words after it record only runs with one of them in their names.
"""

import json
import lzma
import math
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from ckv_core.engine import head_tables
from ckv_core.engine.compare import compare
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.loading import load_model
from ckv_core.records.events import RunResult
from ckv_core.records.records import VariantResult
from ckv_core.records.run_request import DEFAULT_MODEL, RunRequest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "assets" / "examples"
RECORDED = Path(__file__).with_name("golden.json.xz")
NEW_TOKENS = 12
# One a scenario, to its end: reading it takes most of the time.
WHOLE = {"observatory_archive": "context-only", "orchard_study": "regular"}
SCORED = ("snapkv", "pyramidkv", "adakv")
SELECTORS = ("", "+critical", "+critical:stage2=pooled", "+critical_auto")
VARIANTS = (
    "full",
    "streaming_llm",
    *(method + selector for method in SCORED for selector in SELECTORS),
    "adakv+critical:preset=kvpress,safeguard_rule=blend,stage1_counts_window=off",
    "snapkv+critical:sinks=4,pool=avg,group=max,norm=off,window=16",
)
# The methods that came later, on the beginning of one example; each group in one run.
EXCERPT = 2_400  # letters
POLICIES = ("tova", "h2o", "scissorhands:history=64", "r_kv:buffer=64")
ROLLING = "streaming_llm:rolling=on"
LATER = {
    "window scorers, regular": (
        "headkv:table=golden",
        "cake",
        "defensivekv",
        "layer_defensivekv",
        "chunkkv",
        "laprox",
        "snapkv:store=int8",
        "snapkv:store=int4",
        "snapkv:store=think",
        "snapkv+critical:layout=layer",
        "snapkv:layout=page:16",
        "snapkv:every=8,to=6,window=4",
        ROLLING,
        f"{ROLLING},positions=cache",
    ),
    "other scorers, context-only": (
        "observed_attention",
        "vatp",
        "random",
        "knorm",
        "keydiff",
        "lagkv:lag=8",
        "expected_attention",
        "ada_expected_attention",
        "kvzip:repeat=256",
        "capkv",
        "compactor",
        *POLICIES,
    ),
    "outputs and whole heads, regular": (
        "dropkv",
        "ada_dropkv",
        "caote",
        "lava",
        "duo_attention:table=golden",
        "simlayerkv",
        "gated_chunkkv",
        "quest:read_page=8",
    ),
    "tables of our own, context-only": (
        "lu_kv:table=curves",
        "rocketkv",
        "triattention:table=means,buffer=4",
    ),
    "sizes and neighbours, context-only": (
        "curdkv",
        "leverage",
        "noncausal",
        "kvzip:plus=on",
        "kvzip_threshold:repeat=256,threshold=0.1,budget=40%",
        "kvgrad",
        "attention_matching:references=64",
    ),
}

Golden = dict[str, dict[str, Any]]


def examples() -> list[dict[str, Any]]:
    """The app's examples, as its index has them."""
    return list(json.loads((EXAMPLES / "index.json").read_text(encoding="utf-8")))


def requested(example: dict[str, Any], scenario: str, variants: tuple[str, ...]) -> RunRequest:
    """A run of these variants on all of an example."""
    return RunRequest(
        context=(EXAMPLES / example["file"]).read_text(encoding="utf-8"),
        question=example["question"],
        scenario=scenario,  # one of SCENARIOS
        variants=variants,
        budgets=("10%",),
        max_new_tokens=NEW_TOKENS,
    )


def measure(loaded: LoadedModel, request: RunRequest) -> Golden:
    """One run of all its variants, by SPEC; heads matter by a table of our own."""
    result, model = RunResult(), loaded.info
    rows = [[str((3 * i + j) % 7 / 7) for j in range(model.kv_heads)] for i in range(model.layers)]
    shape = (3 * model.head_dim // 2, model.layers, model.query_heads)
    means = torch.arange(math.prod(shape)).view(shape).double().sin()
    means[model.head_dim :] = 1.5  # no mean length is below that of the mean
    layers, heads = torch.arange(model.layers)[:, None], torch.arange(model.kv_heads)
    curves = (torch.arange(1, 100)[:, None, None] / 100) ** ((3 * layers + heads) % 7 / 3 + 0.1)
    with (
        TemporaryDirectory() as home,
        patch.object(head_tables, "head_tables_folder", lambda: Path(home)),
    ):
        head_tables.keep_table(model, "golden", "\n".join(map("\t".join, rows)))
        head_tables.keep_table(model, "curves", head_tables.written(curves))
        head_tables.keep_table(model, "means", head_tables.written(means))
        for event in compare(request, loaded):
            result.apply(event)
    return {variant.spec: _described(variant) for variant in result.variants}


def _described(variant: VariantResult) -> dict[str, Any]:
    """Tokens, and one checksum per layer of the kept set; arrays would be megabytes."""
    assert variant.receipt is not None
    layers = [] if variant.retained is None else variant.retained.mask()
    described = {
        "tokens": list(variant.token_ids),
        "kept": variant.receipt.retained_entries,
        "layers": [zlib.crc32(np.packbits(layer).tobytes()) for layer in layers],
    }
    return described | ({"evicted": zlib.crc32(variant.held.evicted)} if variant.held else {})


def read() -> dict[str, Any]:
    """What was recorded."""
    return dict(json.loads(lzma.decompress(RECORDED.read_bytes())))


def runs() -> Iterator[tuple[str, RunRequest]]:
    """(name, request) of every run."""
    by_name = {Path(example["file"]).stem: example for example in examples()}
    for name, scenario in WHOLE.items():
        yield f"{name}, {scenario}", requested(by_name[name], scenario, VARIANTS)
    first, *_ = examples()
    for name, variants in LATER.items():
        whole = requested(first, name.rpartition(" ")[2], variants)
        yield name, replace(whole, context=whole.context[:EXCERPT])


def main() -> None:
    """Record on one thread, as the tests run."""
    torch.set_num_threads(1)
    loaded, words = load_model(DEFAULT_MODEL, "cpu", "float32"), sys.argv[1:]
    found = read()["runs"] if words else {}
    chosen = [each for each in runs() if not words or any(word in each[0] for word in words)]
    if not chosen:
        sys.exit(f"No run has {' or '.join(words)} in its name.")
    for name, request in chosen:
        found[name] = measure(loaded, request)
    document = {"cpu": torch.backends.cpu.get_cpu_capability(), "runs": found}
    RECORDED.write_bytes(lzma.compress(json.dumps(document, sort_keys=True).encode()))


if __name__ == "__main__":
    main()
