"""The charts and tables of several budgets: curves, savings and points."""

from dataclasses import replace

import numpy as np
import pytest

from ckv_core.experiment.sweep import SWEPT, sweep_points, sweep_savings
from tests.factories.runs import Swept, sweep_result, with_changes
from ui.charts.catalog import CHARTS, figure_of


def drawn(result, quantity, **choices):
    return figure_of(result, "sweep", {"quantity": quantity, **choices})


def value(table, *given):
    """As the page has it."""
    return table(*given).value()


def keys_of(table) -> list[str]:
    return [column["key"] for column in table["columns"]]


# --- budgets of equal quality ---------------------------------------------------------------


def matched_keys(result):
    """Figures of closeness that the points have."""
    figures = [f for f in SWEPT.values() if f.better and not f.is_binary]
    return [f.key for f in figures if f.read(result.variants[1]) is not None]


def test_every_figure_of_the_sweep_has_its_budget_of_equal_quality():
    table = value(sweep_savings, sweep_result(generated=True), 0)
    matched = matched_keys(sweep_result(generated=True))
    assert keys_of(table) == ["method", "matches", *matched]
    finals = [row["cells"]["final"]["text"] for row in table["rows"][:2]]
    assert finals == ["64 or less (already reached at the smallest budget)", "64, 50 % less"]
    # SnapKV agrees by budget / 600, CriticalKV by budget / 512: where 128 / 600 lies is linear.
    at_128 = next(row for row in table["rows"] if row["cells"]["matches"]["value"] == 128)
    needed = 512 * 128 / 600
    assert at_128["cells"]["agreement"]["value"] == pytest.approx(needed)
    plain = value(sweep_savings, sweep_result(), 0)
    assert keys_of(plain)[2:] == matched_keys(sweep_result())


@pytest.mark.parametrize("reference", [None, -1, 99, "0", 1.5])
def test_an_unknown_reference_gives_an_empty_table(reference):
    assert value(sweep_savings, sweep_result(), reference)["rows"] == []


# --- curves ---------------------------------------------------------------------------------


def test_a_curve_has_its_lines_values_and_the_full_cache():
    figure = drawn(sweep_result(better=0.5), "kl")
    assert [list(trace.x) for trace in figure.data] == [list(Swept.BUDGETS)] * 4
    assert np.allclose(figure.data[1].y, [0.25, 0.125, 0.0625, 0.03125])
    assert len({(t.line.color, t.line.dash, t.marker.symbol) for t in figure.data}) == 4
    assert figure.layout.annotations[0].text == "full cache"


def test_yes_or_no_of_one_prompt_is_the_grids_and_no_curve():
    result = sweep_result(generated=True)
    (quantity, *_) = CHARTS["sweep"].offered(result)
    keys = [key for key, _ in quantity.options]
    assert "kl" in keys
    assert not {"answer", "same_text"} & {*keys}


# --- points and files -----------------------------------------------------------------------


def test_a_reference_answer_that_the_prompt_lacks_is_said():
    result = sweep_result(generated=True)
    there = "".join(result.prompt.pieces[2:5])
    lacks = "does not occur in the compressed prompt"
    assert lacks in value(sweep_points, result, "nowhere to be found")["note"]
    assert lacks not in value(sweep_points, result, there)["note"]
    assert lacks not in value(sweep_points, result, " ")["note"]


# --- oracles --------------------------------------------------------------------------------


def swept_with_oracles():
    """The made-up sweep with oracles; those of alpha 0.5 have head budgets of their own."""

    def with_limits(variant):
        scale = 0.25 if variant.params.get("alpha") == 0.5 else 0.5
        limit = np.full((Swept.LAYERS, 6), scale * 64 / variant.params["budget"], np.float32)
        limit[Swept.WHOLE_LAYER] = np.nan
        return replace(
            variant, analysis={"oracle_attention_l1": limit, "oracle_critical_l1": limit / 2}
        )

    return with_changes(sweep_result(), with_limits)


def test_oracles_of_a_curve_are_broken_lines_beside_the_head_l1_alone():
    result = swept_with_oracles()
    assert len(drawn(result, "head").data) == 4
    *methods, attention, critical = drawn(result, "head", oracles="1").data
    assert len(methods) == 4
    assert attention.name == "Oracle: true attention"
    assert list(attention.x) == list(Swept.BUDGETS)
    assert np.allclose(attention.y, [0.5, 0.25, 0.125, 0.0625])
    assert np.allclose(critical.y, np.array(attention.y) / 2)
    assert len({(trace.line.dash, trace.marker.symbol) for trace in (attention, critical)}) == 2
    for trace in (attention, critical):
        assert "dash" in trace.line.dash
        assert trace.line.color not in {each.line.color for each in methods}
    assert len(drawn(result, "final", oracles="1").data) == 4
    *_, control = CHARTS["sweep"].offered(result)
    names = [f"CriticalKV-SnapKV alpha {alpha}" for alpha in ("0", "0.25", "0.5")]
    assert [name for _, name in control.options] == ["none", "SnapKV", *names]
    assert "oracles" not in [control.name for control in CHARTS["sweep"].offered(sweep_result())]
