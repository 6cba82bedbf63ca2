"""The memory estimate of every method is the one recorded: `python -m tests.golden.test_estimates`.

Nothing else sees a changed number of an estimate that is mostly too high. Who means to change one
records anew and reads the difference.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from ckv_core.engine import memory
from ckv_core.engine.compare import compare
from ckv_core.experiment.plan import RequestSizes, Setting
from ckv_core.methods import METHODS
from ckv_core.models.catalog import KNOWN
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.run_request import RunRequest
from ckv_core.records.variants import VariantSpec
from tests.factories.models import tiny_model
from tests.golden.record import LATER, VARIANTS

RECORDED = Path(__file__).with_name("estimates.json")
TEXT = "The ferry left at nine, and the harbour was empty by ten. " * 6
BLOCKS = ("keydiff:prefill=blocks:64", "keydiff:prefill=blocks:16,budget=80%")
# Beside every method by itself: what only several variants, a sweep or a measurement need.
TOGETHER: dict[str, dict[str, object]] = {
    "selectors": {"variants": VARIANTS},
    "measured": {"variants": VARIANTS[:4], "analysis": ("bounds", "forced")},
    "no reference": {"variants": BLOCKS[1:], "reference": False, "context": TEXT * 2},
    "follow-ups": {
        "variants": VARIANTS[:4],
        "scenario": "context-only",
        "follow_ups": ("And then?",),
    },
    "sweep": {
        "variants": ("snapkv",),
        "budgets": tuple(map(str, range(40, 60))),
        "places": tuple(range(1, 21)),
        "max_new_tokens": 0,
    },
}
ALONE = BLOCKS + tuple(
    spec
    for variants in LATER.values()
    for spec in variants
    if "table=" not in spec  # which lies in a folder
)
Estimates = dict[str, dict[str, list[int]]]


def requests() -> Iterator[tuple[str, RunRequest]]:
    plain = {"context": TEXT, "question": "When?", "budgets": ("20%",)}
    for spec in ALONE:
        scenario = "regular" if "window=4" in spec else "context-only"
        yield (
            spec,
            RunRequest(**plain, scenario=scenario, variants=(spec,), max_new_tokens=3),
        )
    for name, more in TOGETHER.items():
        yield name, RunRequest(**plain | {"max_new_tokens": 3} | more)


def estimated(loaded: LoadedModel, request: RunRequest) -> dict[str, list[int]]:
    """Bytes of every stage, by kind of device; each run ends after it was estimated."""

    class Estimated(Exception):
        pass

    def stop(sizes):
        raise Estimated(sizes)

    with patch.object(memory, "_by_device", stop):
        try:
            list(compare(request, loaded))
        except Estimated as error:
            (sizes,) = error.args
    kinds = {
        "cpu": sizes,
        "cuda": replace(sizes, on_cuda=True, flash=True),
        "cuda without flash": replace(sizes, on_cuda=True, flash=False),
    }
    return {kind: _stages(each) for kind, each in kinds.items()}


def _stages(sizes: memory.Sizes) -> list[int]:
    reading = (sizes.prefill_peak, sizes.passes_peak(), sizes.probe_peak())
    held = (sizes.cache, sizes.states, sizes.scores, sizes.kept_sets, sizes.variants, sizes.work)
    working = (sizes.select_peak(), sizes.decode_peak(), sizes.analysing())
    return [*reading, *held, *working, sizes.teacher_forcing()]


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_every_estimate_is_the_one_recorded(architecture):
    loaded, recorded = tiny_model(architecture), json.loads(RECORDED.read_text(encoding="utf-8"))
    found = {name: estimated(loaded, request) for name, request in requests()}
    assert found == recorded[architecture]


def plans() -> dict[str, dict[str, list[int]]]:
    """What `ckv plan` computes of every method, by the sliding windows of the layers."""
    setting = Setting(memory=80 * 2**30, prompt=4_000, output=100)
    found: dict[str, dict[str, list[int]]] = {}
    llama = KNOWN["meta-llama/Llama-3.1-8B-Instruct"]
    for windows in ((None,), (512, None)):
        shape = replace(llama, windows=llama.layers // len(windows) * windows)
        for spec in ALONE:
            sizes = RequestSizes(shape, setting, VariantSpec.parse(spec))
            row = sizes.planned()
            found.setdefault(f"{windows}", {})[spec] = [
                *(sizes.kv_bytes, sizes.reading_peak, sizes.choosing_peak),
                *(row.bytes_read_per_step, row.requests),
            ]
    return found


def test_every_plan_is_the_one_recorded():
    assert plans() == json.loads(RECORDED.read_text(encoding="utf-8"))["plans"]


def test_every_method_is_among_them():
    found = {VariantSpec.parse(spec).method.name for spec in (*ALONE, *VARIANTS)}
    assert found | {"headkv", "duo_attention", "lu_kv", "triattention"} == {
        method.name for method in METHODS
    }


if __name__ == "__main__":
    estimates = {
        name: {case: estimated(tiny_model(name), request) for case, request in requests()}
        for name in ("llama", "gemma3")
    }
    text = json.dumps(estimates | {"plans": plans()})
    text = text.replace('"cpu"', '\n  "cpu"').replace("]}, ", "]},\n ")
    RECORDED.write_text(f"{text}\n", encoding="utf-8")
