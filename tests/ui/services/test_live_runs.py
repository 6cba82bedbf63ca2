"""A run in memory and its snapshots."""

from datetime import UTC, datetime

from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import Progress
from ui.services.live_runs import LiveRun


def test_stage_times_of_a_snapshot_do_not_grow() -> None:
    run = LiveRun("slug", "title", CompareRequest(context="text"), datetime.now(UTC))
    run.apply(Progress("load", None, ""))
    run.apply(Progress("prefill", 0.0, ""))
    early = run.snapshot(0)
    run.apply(Progress("score", 0.0, ""))
    assert set(early.stage_ms) == {"load"}
    assert set(run.snapshot(0).stage_ms) == {"load", "prefill"}
