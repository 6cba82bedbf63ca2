"""Laws of a sweep: it measures and keeps what a comparison does, in groups."""

from dataclasses import replace

import numpy as np
import pytest

from ckv_core.engine import compare as module
from ckv_core.engine.compare import compare
from ckv_core.errors import RunCancelledError
from ckv_core.records.events import (
    FloorMeasured,
    Progress,
    RunResult,
    VariantMeasured,
    VariantSelected,
)
from ckv_core.records.run_request import RunRequest
from tests.factories.events import folded
from tests.factories.models import tiny_model

pytestmark = pytest.mark.slow

TEXT = "The ferry left at nine. Nobody waved, for it was raining. " * 4
GRID = RunRequest(
    variants=("snapkv+critical", "snapkv", "adakv+critical", "pyramidkv+critical_auto"),
    budgets=("40", "64", "90"),
    alphas=("0", "0.5"),
)
SAME = ("spec", "token_ids", "text", "stopped", "agreement")


def run(request: RunRequest) -> tuple[RunResult, list[object]]:
    events = list(compare(request, tiny_model("llama")))
    return folded(events), events


def sweep_request(new_tokens: int, scenario: str = "regular") -> RunRequest:
    settings = {"question": "Who waved?", "scenario": scenario, "max_new_tokens": new_tokens}
    return replace(GRID, context=TEXT, ignore_eos=True, **settings)


def compared(request: RunRequest, first: int) -> RunRequest:
    """Twelve of its points as a comparison."""
    specs = tuple(point.spec for point in request.points())[first : first + 12]
    return replace(request, variants=specs, budgets=(), alphas=())


@pytest.mark.parametrize(
    ("rows", "scenario"), [(3, "context-only"), (5, "regular"), (32, "regular")]
)
def test_a_sweep_measures_and_generates_what_comparisons_do(monkeypatch, scenario, rows):
    monkeypatch.setattr(module, "GROUP_ROWS", rows)
    request = sweep_request(3, scenario)
    (swept, _), close = run(request), np.testing.assert_allclose
    for start in range(0, len(request.points()), 12):
        for one, many in zip(
            run(compared(request, start))[0].variants, swept.variants[start:], strict=False
        ):
            for name in (*SAME, "receipt", "retained"):
                assert getattr(one, name) == getattr(many, name), name
            assert set(many.analysis) == ({"head_alpha"} if "auto" in one.spec else set())
            for name, values in many.analysis.items():
                np.testing.assert_array_equal(values, one.analysis[name])
            if one.spec == "full":
                assert many.perturbation is None
                continue
            mine, its = many.perturbation, one.perturbation
            assert mine.kl == pytest.approx(its.kl, rel=1e-3, abs=1e-5)
            close(mine.layer_hidden_l1, its.layer_hidden_l1, rtol=1e-3, atol=1e-3)
            close(mine.head_l1, its.head_l1, rtol=1e-4, atol=1e-4)
            assert (mine.base_head_l1 is None) == (its.base_head_l1 is None)
            if mine.base_head_l1 is not None:
                close(mine.base_head_l1, its.base_head_l1, rtol=1e-4, atol=1e-4)


def test_a_sweep_that_only_measures_has_receipts_and_kept_sets_and_no_text(monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 6)
    result, events = run(sweep_request(0))
    assert result.finished
    assert result.kind == "sweep"
    for variant in result.variants:
        assert variant.receipt is not None
        assert (variant.text, variant.token_ids) == ("", ())
        assert (variant.retained is None) == (variant.spec == "full")
    selected = [event.index for event in events if isinstance(event, VariantSelected)]
    measured = [event.index for event in events if isinstance(event, VariantMeasured)]
    assert sorted(selected) == list(range(len(result.variants)))
    assert sorted(measured) == list(range(1, len(result.variants)))
    assert sum(isinstance(event, FloorMeasured) for event in events) == 1


def test_kept_sets_of_many_samples_and_of_more_than_a_file_holds_stay_in_the_engine(monkeypatch):
    request = replace(sweep_request(1), alphas=(), budgets=("40",))
    named = replace(request, name="many", places=(0, 1))
    monkeypatch.setattr(module, "MAX_KEPT_CHARS", 100)
    for each in (named, replace(request, budgets=("40", "64"))):
        assert {variant.retained for variant in run(each)[0].variants} == {None}
    assert run(request)[0].variants[1].retained is not None  # a comparison always has them


def test_progress_of_a_sweep_never_goes_back_within_a_stage(monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 4)
    _, events = run(sweep_request(2))
    seen: dict[str, float] = {}
    for event in events:
        if isinstance(event, Progress) and event.fraction is not None:
            assert seen.get(event.stage, 0.0) <= event.fraction <= 1.0
            seen[event.stage] = event.fraction


def test_a_sweep_can_be_cancelled_between_groups(monkeypatch):
    monkeypatch.setattr(module, "GROUP_ROWS", 4)
    seen = []

    def measured() -> int:
        return sum(isinstance(event, VariantMeasured) for event in seen)

    with pytest.raises(RunCancelledError):
        seen.extend(compare(sweep_request(0), tiny_model("llama"), lambda: measured() > 0))
    assert 0 < measured() < 10
