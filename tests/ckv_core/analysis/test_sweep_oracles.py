"""Laws of the oracles of a sweep: whose budgets they have, and that they are those of the runs."""

from dataclasses import replace

import numpy as np
import pytest

from ckv_core.analysis.result_json import derived_json
from ckv_core.analysis.sweep import curves, known_oracles, oracle_sets
from ckv_core.compare import sweep
from ckv_core.compare.compare import compare
from ckv_core.request.compare_request import CompareRequest
from ckv_core.request.grid import SweepGrid
from ckv_core.results.chain import mean_head_l1
from ckv_core.results.events import RunResult
from ckv_core.results.quantities import QUANTITIES
from ckv_core.results.records import VariantResult
from tests.factories.events import folded
from tests.factories.models import tiny_model
from tests.factories.runs import SWEPT_MODEL, swept_point

pytestmark = pytest.mark.slow

TEXT = "The ferry left at nine. Nobody waved, for it was raining. " * 4
GRID = SweepGrid(
    methods=("snapkv", "snapkv+critical", "adakv", "adakv+critical", "streaming_llm"),
    budgets=("40", "64", "90"),
    alphas=("0", "0.5"),
)


def with_oracles(text: str, attention: float, critical: float | None = None) -> VariantResult:
    """A point whose oracles reach these; the second layer is not evictable."""
    found = {"oracle_attention_l1": attention, "oracle_critical_l1": critical}
    arrays = {
        name: np.array([[value] * 4, [np.nan] * 4], np.float32)
        for name, value in found.items()
        if value is not None
    }
    return replace(swept_point(text, [9, 9, 9, 9]), analysis=arrays)


def test_curves_of_equal_head_budgets_share_one_set_of_oracles():
    specs = {
        "snapkv": (4, 2),
        "snapkv+critical:alpha=0.5": (4.0001, 2),  # rounded in another group
        "adakv": (3, 1),
        "pyramidkv": (4, 2),
    }
    variants = [
        with_oracles(f"{spec}{',' if ':' in spec else ':'}budget={budget}", *values)
        for spec, values in specs.items()
        for budget in ((64, 128) if spec != "pyramidkv" else (64,))
    ]
    result = RunResult(model=SWEPT_MODEL, variants=[swept_point("full", [0] * 4), *variants])
    shared, adaptive, pyramid = oracle_sets(result)
    assert [curve.spec for curve in shared.curves] == ["snapkv", "snapkv+critical:alpha=0.5"]
    assert shared.values == {
        "oracle_attention_l1": ((64, 4.0), (128, 4.0)),
        "oracle_critical_l1": ((64, 2.0), (128, 2.0)),
    }
    assert adaptive.values["oracle_attention_l1"] == ((64, 3.0), (128, 3.0))
    assert [curve.spec for curve in pyramid.curves] == ["pyramidkv"]


def test_points_without_oracles_have_none_and_known_ones_are_shown():
    bare = swept_point("snapkv:budget=64", [1] * 4)
    assert QUANTITIES["oracle_attention_l1"].read(bare) is None
    unmeasured = RunResult(model=SWEPT_MODEL, variants=[bare])
    assert (oracle_sets(unmeasured), known_oracles(unmeasured)) == ([], [])
    partial = RunResult(variants=[bare, with_oracles("snapkv:budget=128", 3)], kind="sweep")
    (found,) = oracle_sets(partial)
    assert found.values == {"oracle_attention_l1": ((128, 3.0),)}
    (curve,) = derived_json(partial)["curves"]
    assert curve["oracles"] == {"oracle_attention_l1": [None, 3.0]}
    assert derived_json(replace(partial, variants=[bare]))["curves"][0]["oracles"] == {}


def test_an_oracle_without_any_defined_head_is_unknown():
    assert QUANTITIES["oracle_attention_l1"].read(with_oracles("snapkv:budget=64", np.nan)) is None


def run(analysis: tuple[str, ...], rows: int, monkeypatch: pytest.MonkeyPatch) -> RunResult:
    monkeypatch.setattr(sweep, "GROUP_ROWS", rows)
    prompt = CompareRequest(context=TEXT, question="Who?", max_new_tokens=0, analysis=analysis)
    return folded(compare(GRID.request(prompt), tiny_model("llama")))


def test_a_sweeps_oracles_do_not_depend_on_its_groups_and_selectors_share_them(monkeypatch):
    many, one = (run(("bounds",), rows, monkeypatch) for rows in (5, 32))
    for result in (many, one):
        uniform, adaptive, streaming = oracle_sets(result)
        assert [len(each.curves) for each in (uniform, adaptive, streaming)] == [3, 3, 1]
        names = [{c.label.partition(" ")[0] for c in each.curves} for each in (uniform, adaptive)]
        assert names == [{"SnapKV"}, {"AdaKV"}]
        for oracles in (uniform, adaptive):
            # Kept by the true A v the heads move less than by any estimate of it.
            limit = dict(oracles.values["oracle_critical_l1"])
            plain = oracles.curves[0]
            for budget, index in plain.points:
                assert limit[budget] < mean_head_l1(result.variants[index])
    for left, right in zip(oracle_sets(many), oracle_sets(one), strict=True):
        for name, points in left.values.items():
            np.testing.assert_allclose(points, right.values[name], rtol=1e-3)


def test_without_the_bounds_a_sweep_has_no_oracles(monkeypatch):
    result = run((), 32, monkeypatch)
    assert len(curves(result)) == 7
    assert oracle_sets(result) == []
