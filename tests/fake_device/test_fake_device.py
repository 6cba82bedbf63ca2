"""The engine on one and on two emulated devices; no GPU, and nothing about a GPU's own kernels.

`CKV_SOAK` set takes every variant of `combinations` in both scenarios, else a sample.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fake_device.device import compiler

ROOT = Path(__file__).resolve().parents[2]
# What waits more often while it evicts.
WAITS_MORE = ("every=",)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    if compiler() is None:
        pytest.skip("no C++ compiler is here to build the emulated device with")
    which = "all" if os.environ.get("CKV_SOAK") else "sample"
    done = subprocess.run(
        [sys.executable, "-m", "tests.fake_device.matrix", which],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_case_runs(found):
    assert len(found) > 12
    assert not [case for case in found if "error" in case]


def test_tokens_are_those_of_the_cpu(found):
    compared = [case for case in found if "other" in case]
    assert len(compared) > 10
    assert {case["case"]: case["other"] for case in compared if case["other"]} == {}


def test_no_prompt_takes_the_path_that_writes_all_logits_out(found):
    assert not [case for case in found if "math attention" in case.get("events", {})]


def test_a_step_waits_once_and_once_more_for_each_policy(found):
    steps = [case for case in found if "waits" in case]
    assert sum(case["waits"] for case in steps), "waits are counted"
    promised = [case for case in steps if not any(key in str(case["specs"]) for key in WAITS_MORE)]
    assert not [case for case in promised if case["waits"] > 1]


def test_a_step_launches_little_whatever_the_store_and_the_lengths(found):
    steps = {case["case"]: case for case in found if "launches" in case}
    launches = {name.removeprefix("step of "): case["launches"] for name, case in steps.items()}
    policy = "tova:store=int4"
    assert max(launches["full"], launches["snapkv"], launches["adakv"]) <= 55, launches
    assert max(count for name, count in launches.items() if name != policy) <= 90, launches
    waits = {name: case["step waits"] for name, case in steps.items()}
    assert waits == {name: 1 + (name == f"step of {policy}") for name in steps}


def test_replayed_steps_give_what_usual_ones_give(found):
    graphs = [case["graphs"] for case in found if "graphs" in case]
    assert [replayed for _, replayed in graphs] == [5 + 4 + 4 + 2] * 2
    assert max(apart for apart, _ in graphs) < 1e-4


def test_make_gpu_runs_on_a_device(found):
    (made,) = (case for case in found if case["case"] == "make gpu")
    reasons = [reason for reason in made["reasons"] if "not installed" not in reason]
    # The full cache and the method at two batches, transformers at two.
    assert reasons == [""] * 6
    assert all(
        peak for peak, reason in zip(made["peaks"], made["reasons"], strict=True) if not reason
    )


def test_the_oracles_do_not_wait_in_each_round(found):
    (searched,) = (case for case in found if case["case"].startswith("+critical,"))
    assert searched["events"]["item"] < 100


def test_kernels_are_those_of_the_compute_capability(found):
    newer, older = (case["events"] for case in found if case["case"].startswith("half"))
    assert newer["flash"]
    assert newer["flash varlen"]
    assert not {"flash", "flash varlen"} & older.keys()


def test_steps_are_timed_between_events_and_so_is_what_observers_gather(found):
    full, h2o, _ = next(case["times"] for case in found if case["case"] == "timed")
    assert full["step_ms"] == h2o["step_ms"] == [1.0, 1.0, 1.0]
    assert full["tokens_per_s"] == {"1": 1000.0, "5": 5000.0}
    assert h2o["added_first_token_ms"] > 4.0, "an event before and after each of four layers"


def test_a_model_lies_on_one_device_where_it_fits_and_else_on_both_alike(found):
    places = found[-1]
    assert places["roomy"]["weights"][1] == places["second"]["weights"][0] == 0
    one, two = places["spread"]["weights"]
    assert one + two == sum(places["float32"]["weights"])
    assert abs(one - two) < 0.1 * one
    assert places["spread"]["tokens"] == places["float32"]["tokens"]
    assert places["too large"]["refused"].startswith("ModelTooLargeError")
    assert "takes 3.0 MiB in float32" in places["too large"]["refused"]


def test_the_type_that_is_chosen_is_one_that_the_card_has(found):
    assert [found[-1][name]["dtype"] for name in ("roomy", "older")] == ["bfloat16", "float16"]


def test_a_model_in_memory_makes_room_for_a_large_one(found):
    assert found[-1]["after another"].endswith("large")


def test_a_run_is_refused_for_the_device_that_is_too_small(found):
    second, first, none = found[-1]["estimates"]
    assert "fakegpu:1 has 1.0 MiB left" in second
    assert "fakegpu:0 has 1.0 MiB left" in first
    assert not none
