"""Each variant timed alone: laws of one run's own figures, no absolute times."""

import time
from dataclasses import replace

import pytest

from ckv_core.engine import timing
from ckv_core.engine.compare import compare
from ckv_core.errors import RunCancelledError
from ckv_core.methods.scissorhands import DropLow
from ckv_core.records.codec import from_json, to_json
from ckv_core.records.events import Progress
from tests.factories.events import without_times
from tests.factories.models import tiny_model
from tests.factories.tiny_runs import run, short_request

SLEEP_MS = 5.0
TIMED = short_request(
    *("full", "snapkv", "kvzip", "h2o", "tova", "scissorhands"), budgets=("48",), time=True
)


FASTEST: dict[int, float] = {}  # by variant, ms of its fastest step: a busy machine moves no other


@pytest.fixture(scope="module")
def timed():
    """One method's every step sleeps."""
    acts, record = DropLow.after_step, timing._Alone.timed

    def noted(self, others):
        FASTEST[self.row] = min(self.step_ms)
        return record(self, others)

    def sleepy(self, view, parameters):
        if view.layer == 0:
            time.sleep(SLEEP_MS / 1000)
        return acts(self, view, parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DropLow, "after_step", sleepy)
        patch.setattr(timing._Alone, "timed", noted)
        patch.setattr(timing, "STEP_LIMIT_S", 0.1)
        return run(TIMED)


def test_a_sleep_in_one_methods_step_moves_its_figure_alone(timed):
    *others, sleepy = (FASTEST[row] for row in range(len(timed.variants)))
    assert all(sleepy > each + 0.8 * SLEEP_MS for each in others)
    assert timed.variants[-1].time.step_ms[0] >= sleepy > SLEEP_MS


def test_what_is_gathered_in_the_prefill_and_in_further_passes_counts_to_its_method(timed):
    added = {each.method: each.time.added_first_token_ms for each in timed.variants}
    assert added["kvzip"] > added["snapkv"] > added["full"]
    assert added["h2o"] > added["full"]


def test_every_variant_is_timed_in_rising_batches_and_nothing_else_changes(timed):
    for variant in timed.variants:
        batches = variant.time.batches
        assert batches[0] == 1
        assert [each for each in batches if each < max(batches)] == [1, 8, 32][: len(batches) - 1]
        assert variant.time.steps == timing.ROUNDS * timing.STEPS >= 32
    assert from_json(to_json(timed)).variants[1].time == timed.variants[1].time
    assert without_times(timed) == without_times(run(replace(TIMED, time=False)))


def test_timing_can_be_cancelled():
    seen = []
    stream = compare(TIMED, tiny_model("llama"), lambda: seen[-1:] == ["time"])
    with pytest.raises(RunCancelledError):
        seen.extend(event.stage for event in stream if isinstance(event, Progress))
    assert seen[-1] == "time"


def test_a_slow_step_lets_few_rows_run_together_and_the_progress_rises(monkeypatch):
    tried = []
    two_fit = [1000 * timing.STEP_LIMIT_S / 2.5] * timing.STEPS
    monkeypatch.setattr(timing._Alone, "_decode", lambda *_: two_fit)
    monkeypatch.setattr(
        timing._Alone, "_batch", lambda _self, _plan, count: tried.append(count) or 1
    )
    request = short_request("full", "snapkv", budgets=("48",), time=True)
    events = list(compare(request, tiny_model("llama"), lambda: False))
    shares = [
        each.fraction for each in events if isinstance(each, Progress) and each.stage == "time"
    ]
    assert tried == [2, 2]
    assert shares == sorted({*shares})


def test_a_batch_that_finds_no_memory_is_tried_again_with_fewer_rows(monkeypatch):
    tried = []

    def batch(_self, _plan, count):
        tried.append(count)
        return None if count > 8 else 0.001

    monkeypatch.setattr(timing._Alone, "_batch", batch)
    (full,) = run(short_request("full", time=True)).variants
    assert tried == [8, 32, 24, 18, 13, 9]
    assert (full.time.batches, full.time.bound) == ([1, 8], "memory")
