"""Laws of what is read from a sweep's points: curves, best alphas, and what oracles reach."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ckv_core.analysis.result_json import derived_json
from ckv_core.analysis.sweep import (
    SWEPT,
    alpha_optima,
    curves,
    known_figures,
    known_oracles,
    oracle_sets,
)
from ckv_core.comparison import sweep
from ckv_core.comparison.compare import compare
from ckv_core.request.compare_request import CompareRequest
from ckv_core.request.grid import SweepGrid
from ckv_core.results.chain import mean_head_l1
from ckv_core.results.events import RunResult
from ckv_core.results.figures import FIGURES
from ckv_core.results.quantities import QUANTITIES
from ckv_core.results.records import VariantResult
from tests.factories.events import folded
from tests.factories.models import tiny_model
from tests.factories.runs import SWEPT_MODEL, swept_point

TEXT = "The ferry left at nine. Nobody waved, for it was raining. " * 4
GRID = SweepGrid(
    methods=("snapkv", "snapkv+critical", "adakv", "adakv+critical", "streaming_llm"),
    budgets=("40", "64", "90"),
    alphas=("0", "0.5"),
)


def sweep_of(*variants: VariantResult) -> RunResult:
    return RunResult(model=SWEPT_MODEL, variants=[*variants], kind="sweep")


def moved(text: str, l1: float = 1.0) -> VariantResult:
    """A point all of whose heads moved so far."""
    return swept_point(text, [l1] * 4)


def test_alpha_optima_equal_the_literal_minimum_over_groups():
    result = sweep_of(
        moved("full", 0),
        swept_point("snapkv+critical:budget=64,alpha=0.5", [1, 2, 8, 8]),
        swept_point("snapkv+critical:budget=64,alpha=0.0", [4, 4, 3, 3]),
        moved("snapkv:budget=64", 9),
    )
    (found,) = alpha_optima(result)
    assert (found.spec, found.budget, found.alphas) == ("snapkv+critical", 64, (0.0, 0.5))
    assert found.best_fixed == 0.0
    assert found.head_alpha[0].tolist() == [0.5, 0.0]
    assert found.layer_alpha[0] == 0.0
    assert np.isnan(found.head_alpha[1]).all()
    assert found.layer_gain == 0.0
    assert found.head_gain == pytest.approx(1 - (3 + 6) / 14)


def test_answers_are_curves_of_their_own_and_unknown_ones_are_left_out():
    scores = {"exact_match": 0.0, "token_f1": 0.5, "edit_similarity": 0.25}
    scored = replace(moved("snapkv:budget=64"), answer_found=False, answer_scores=scores)
    result = sweep_of(scored, moved("snapkv:budget=128"))
    (curve,) = curves(result)
    answers = {"answer": 0} | scores
    for key, value in answers.items():
        assert curve.values(result, FIGURES[key]) == [(64, value)]
    assert known_figures(result) == [f for f in SWEPT.values() if f.read(scored) is not None]
    assert {figure.key for figure in known_figures(result)} >= answers.keys()


def test_points_that_only_an_imported_run_can_have_are_on_no_curve():
    known, unknown = moved("snapkv:budget=64"), moved("snapkv:budget=128", 2)
    nothing = replace(unknown, spec="adakv", receipt=replace(unknown.receipt, budget_tokens=0))
    unknown = replace(unknown, perturbation=replace(unknown.perturbation, kl=math.nan))
    result = sweep_of(known, unknown, nothing)
    (curve,) = curves(result)
    assert curve.points == ((64, 0), (128, 1))
    assert curve.values(result, FIGURES["kl"]) == [(64, 0.0)]


def test_points_of_equal_settings_are_one_curve_however_their_specs_are_written():
    written = (
        "snapkv+critical:budget=64",
        "snapkv+critical:alpha=0.25,budget=128",
        "snapkv+critical:kernel=7,alpha=0.25,budget=128",
        "snapkv+critical:kernel=7,alpha=0.5,budget=64",
        "snapkv+critical:kernel=5,budget=64",
    )
    result = sweep_of(*map(moved, written))
    assert [(curve.spec, curve.alpha, curve.points) for curve in curves(result)] == [
        ("snapkv+critical", 0.25, ((64, 0), (128, 1))),
        ("snapkv+critical:kernel=7,alpha=0.5", 0.5, ((64, 3),)),
        ("snapkv+critical:kernel=5", 0.25, ((64, 4),)),
    ]
    (optimum,) = alpha_optima(result)
    assert (optimum.spec, optimum.budget, optimum.alphas) == ("snapkv+critical", 64, (0.25, 0.5))


# --- oracles ------------------------------------------------------------------------------------


def with_oracles(text: str, attention: float, critical: float | None = None) -> VariantResult:
    """A point whose oracles reach these; the second layer is not evictable."""
    found = {"oracle_attention_l1": attention, "oracle_critical_l1": critical}
    arrays = {
        name: np.array([[value] * 4, [np.nan] * 4], np.float32)
        for name, value in found.items()
        if value is not None
    }
    return replace(moved(text, 9), analysis=arrays)


def test_curves_of_equal_head_budgets_share_one_set_of_oracles():
    specs = {
        "snapkv": (4, 2),
        "snapkv+critical:alpha=0.5": (4.0001, 2),  # rounded in another group
        "adakv": (3, 1),
        "pyramidkv": (4, 2),
    }
    points = [
        with_oracles(f"{spec}{',' if ':' in spec else ':'}budget={budget}", *values)
        for spec, values in specs.items()
        for budget in ((64, 128) if spec != "pyramidkv" else (64,))
    ]
    shared, adaptive, pyramid = oracle_sets(sweep_of(moved("full", 0), *points))
    assert [curve.spec for curve in shared.curves] == ["snapkv", "snapkv+critical:alpha=0.5"]
    assert shared.values == {
        "oracle_attention_l1": ((64, 4.0), (128, 4.0)),
        "oracle_critical_l1": ((64, 2.0), (128, 2.0)),
    }
    assert adaptive.values["oracle_attention_l1"] == ((64, 3.0), (128, 3.0))
    assert [curve.spec for curve in pyramid.curves] == ["pyramidkv"]


def test_points_without_oracles_have_none_and_known_ones_are_shown():
    read = QUANTITIES["oracle_attention_l1"].read
    bare = moved("snapkv:budget=64")
    assert read(bare) is read(with_oracles("snapkv:budget=64", np.nan)) is None
    unmeasured = sweep_of(bare)
    assert (oracle_sets(unmeasured), known_oracles(unmeasured)) == ([], [])
    partial = sweep_of(bare, with_oracles("snapkv:budget=128", 3))
    (found,) = oracle_sets(partial)
    assert found.values == {"oracle_attention_l1": ((128, 3.0),)}
    (curve,) = derived_json(partial)["curves"]
    assert curve["oracles"] == {"oracle_attention_l1": [None, 3.0]}
    assert derived_json(unmeasured)["curves"][0]["oracles"] == {}


@pytest.mark.slow
def test_a_sweeps_oracles_do_not_depend_on_its_groups_and_selectors_share_them(monkeypatch):
    def run(rows: int, *parts: str) -> RunResult:
        monkeypatch.setattr(sweep, "GROUP_ROWS", rows)
        settings = {"kind": "sweep", "variants": GRID.variants(), "max_new_tokens": 0}
        asked = CompareRequest(context=TEXT, question="Who?", analysis=parts, **settings)
        return folded(compare(asked, tiny_model("llama")))

    assert oracle_sets(run(32)) == []
    many, one = run(5, "bounds"), run(32, "bounds")
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
