"""Several runs together: means, intervals, the win map, and what is refused."""

import dataclasses
from datetime import timedelta

import numpy as np
import pytest

from ckv_core.analysis.aggregate import budget_curves
from ckv_core.analysis.intervals import MIN_PROMPTS, interval_note
from ckv_core.errors import ConfigError
from ckv_core.results.chain import COVERED
from tests.factories.app import START, prompt_run, runs_of
from tests.factories.runs import Swept
from ui.aggregate.chosen import read_slugs, take_together
from ui.aggregate.page import means_table
from ui.charts.aggregate import AGGREGATE_CHARTS, means_csv, win_figure, wins_csv
from ui.results.chart_views import aggregate_value
from ui.tables.aggregate import DIAGNOSTICS_FIGURES, MAIN_FIGURES
from ui.tables.pairs import pairs_table

CRITICAL = "snapkv+critical:budget=64,alpha=0.25"


def member_of(found, spec: str):
    return next(member for member in found.members if member.spec == spec)


def test_a_variant_that_was_run_twice_on_a_prompt_counts_once_by_its_newest_run():
    newer = prompt_run(1, better=0.9, created_at=START + timedelta(days=1))
    for runs in ([*runs_of(2), newer], [newer, *runs_of(2)]):  # whatever the address says first
        found = take_together(runs)
        final = member_of(found, CRITICAL).figures["final"]
        assert (found.n, final.n) == (2, 2)
        assert final.mean == pytest.approx(100 * (0.5 + 0.9) / 2)
        assert found.notes[0].startswith("16 results are left out: a newer run has the same")


def test_two_budgets_of_each_prompt_in_runs_of_their_own_are_one_curve():
    runs = []
    for prompt in range(2):
        for budget in (64, 256):
            run = dataclasses.replace(prompt_run(prompt), slug=f"run{prompt}of{budget}")
            run.result.variants = [
                v for v in run.result.variants if f"budget={budget}" in v.spec or v.spec == "full"
            ]
            runs.append(run)
    found = take_together(runs)
    curves = budget_curves(found.members)
    assert found.n == 2
    assert len(curves) == 4
    for curve in curves:
        points = curve.values("final")
        assert [(budget.amount, mean.n) for budget, mean in points] == [(64, 2), (256, 2)]
    assert [row["cells"]["budget"].get("value") for row in means_table(found)["rows"]] == [
        None,
        *[64] * 4,
        *[256] * 4,
    ]
    one = take_together(runs[:2])
    title = AGGREGATE_CHARTS["budget"].figure(one, {}).layout.title
    assert title.subtitle.text == "mean; too few prompts for an interval, n = 1 prompt"
    assert one.n == 1
    assert [len(curve.points) for curve in budget_curves(one.members)] == [2] * 4
    assert one.notes == [interval_note(1)]


def test_rows_of_fewer_prompts_say_their_own_n():
    runs = runs_of(MIN_PROMPTS)
    runs[0].result.variants = [v for v in runs[0].result.variants if v.spec != CRITICAL]
    found = take_together(runs)
    rows = {row["cells"]["spec"]["text"]: row["cells"] for row in means_table(found)["rows"]}
    assert {row["n"]["value"] for spec, row in rows.items() if spec != CRITICAL} == {MIN_PROMPTS}
    assert rows[CRITICAL]["n"]["value"] == MIN_PROMPTS - 1
    assert rows[CRITICAL]["final_low"]["value"] is None
    fewer, few = found.notes
    assert fewer.startswith("1 of 16 variants were run on fewer than all 10 prompts (snapkv+crit")
    assert few.startswith("An interval of a mean needs at least 10 prompts")


def test_the_full_cache_is_shown_with_what_it_was_judged_by_and_as_a_pair():
    runs = runs_of(3)
    for run, found in zip(runs, (True, True, False), strict=True):
        judged = [
            dataclasses.replace(v, answer_found=found and v.spec != CRITICAL, stopped="eos")
            for v in run.result.variants
            if v.spec in ("full", CRITICAL)
        ]
        run.result.variants = judged
    found = take_together(runs)
    full, critical = means_table(found)["rows"]
    assert full["cells"]["variant"]["text"] == "Full cache"
    assert full["cells"]["answer"]["text"].startswith("66.7% (9.4% to 99.2%)")
    assert critical["cells"]["answer"]["text"] == "0.0% (0.0% to 70.8%)"
    (pair,) = pairs_table(found)["rows"]
    assert pair["cells"]["other"]["text"] == "Full cache"
    assert pair["cells"]["answer"]["text"] == "+0 -2, p = 0.5"


def test_answers_that_were_cut_are_counted_apart_with_a_warning():
    runs = runs_of(2)
    for run in runs:
        run.result.variants = [
            dataclasses.replace(v, answer_found=False, stopped="length")
            for v in run.result.variants
            if v.spec in ("full", CRITICAL)
        ]
    runs[0].result.variants[1] = dataclasses.replace(runs[0].result.variants[1], answer_found=True)
    found = take_together(runs)
    assert any("3 of 4 generated texts were cut at the limit" in note for note in found.notes)
    full, critical = means_table(found)["rows"]
    assert (full["cells"]["cut"]["text"], critical["cells"]["cut"]["text"]) == ("2 of 2", "1 of 2")
    assert "answer" not in full["cells"]  # nothing is known, rather than 0 %
    assert critical["cells"]["answer"]["text"].endswith(", n = 1")


def test_the_full_cache_alone_is_refused():
    runs = runs_of(2)
    for run in runs:
        run.result.variants = run.result.variants[:1]
    with pytest.raises(ConfigError, match="full cache alone"):
        take_together(runs)


def test_heads_win_by_their_means_over_the_prompts():
    runs = runs_of(2)
    for run, factors in zip(
        runs, (np.full(Swept.QUERY_HEADS, 0.5), np.full(Swept.QUERY_HEADS, 1.2)), strict=True
    ):
        at = next(i for i, v in enumerate(run.result.variants) if v.spec == CRITICAL)
        variant = run.result.variants[at]
        base = variant.perturbation.base_head_l1
        factors[0] = 1.9
        moved = dataclasses.replace(
            variant.perturbation, head_l1=(base * factors).astype(np.float32)
        )
        run.result.variants[at] = dataclasses.replace(variant, perturbation=moved)
    found = take_together(runs)
    wins = member_of(found, CRITICAL).head_wins
    # Head 0 loses in both; the others win in the mean, 0.85, though they lose in one prompt.
    assert (wins.count, wins.heads, wins.n) == (35, 42, 2)
    ratio = win_figure("x", wins).data[0].z
    assert ratio[0, 1] == pytest.approx(np.log2(0.85), abs=1e-5)
    assert np.isnan(ratio[4]).all()
    line = next(line for line in wins_csv(found).splitlines() if f'"{CRITICAL}",0,1,' in line)
    assert float(line.split(",")[-2]) == pytest.approx(np.log2(0.85), abs=1e-5)


def test_runs_whose_bounds_took_different_alphas_say_so_once():
    runs = runs_of(2)
    for run, alpha in zip(runs, (0.0, 1.0), strict=True):
        arrays = {
            "sigma_stage1": np.array([[0.4, 0.6]], np.float32),
            "sigma_oracle": np.array([[0.4, 0.6]], np.float32),
            "stage1_alpha": np.array([alpha], np.float32),
        }
        run.result.variants = [dataclasses.replace(v, analysis=arrays) for v in run.result.variants]
    found = take_together(runs)
    (note,) = [note for note in found.notes if "alphas of stage 1 differ (0, 1)" in note]
    plain = [m for m in found.members if "+" not in m.spec and m.spec != "full"]
    assert len(plain) > 1
    assert {member.alpha_note for member in plain} == {note}
    assert "Oracle sigma over 0.5" in [figure.label for figure in found.known(DIAGNOSTICS_FIGURES)]
    assert found.members[1].figures["oracle_over_half"].mean == 0.5


def test_one_run_and_an_unfinished_one_are_refused():
    with pytest.raises(ConfigError, match="at least two runs"):
        take_together([prompt_run(1)])
    with pytest.raises(ConfigError, match="runabc2 is not done"):
        take_together([prompt_run(1), prompt_run(2, state="failed")])


@pytest.mark.parametrize("text", ["../../etc/passwd", "abcdef,<b>", "a\ud800"])
def test_a_text_that_is_no_name_is_refused(text):
    with pytest.raises(ConfigError, match="is not the name of a run"):
        read_slugs(text)


def test_charts_carry_the_interval_and_the_count():
    found = take_together(runs_of(MIN_PROMPTS))
    trace = AGGREGATE_CHARTS["final"].figure(found, {}).data[-1]
    assert trace.error_x.array[0] > 0
    assert trace.error_x.arrayminus[0] > 0
    at = next(at for at, m in enumerate(found.members) if m.spec == CRITICAL)
    wins = AGGREGATE_CHARTS["wins"].figure(found, {"variant": str(at)})
    assert "42 of 42 query heads" in wins.layout.title.subtitle.text
    assert wins.layout.title.text.startswith("SnapKV + CriticalKV, budget 64, alpha 0.25: ")


def test_there_is_a_chart_of_what_was_measured_and_of_nothing_else():
    found = take_together(runs_of(2))
    names = [chart["name"] for chart in aggregate_value(["a", "b"], found)["charts"]]
    known = [figure.key for figure in found.known(MAIN_FIGURES)]
    assert names == ["budget", *known, "layers", "wins"]
    assert {"kl", "final", "head", "improved_heads"} <= {*known}
    assert AGGREGATE_CHARTS["agreement"].figure(found, {}) is None


def test_a_quantity_of_the_diagnostics_is_averaged_over_prompts_and_in_the_file():
    runs = runs_of(2)
    for at, run in enumerate(runs):
        mass = np.full((Swept.LAYERS, Swept.QUERY_HEADS), 1.0 + at, np.float32)
        run.result.variants[1] = dataclasses.replace(
            run.result.variants[1], analysis={"value_mass": mass}
        )
    found = take_together(runs)
    figure = AGGREGATE_CHARTS["laboratory"].figure(found, {"quantity": "value_mass"})
    assert list(figure.data[0].x) == [1.5]
    spec = found.members[1].spec
    label = "C: all attention times value norm"
    lines = [line for line in means_csv(found).splitlines() if label in line]
    assert lines == [f'"{spec}","{label}","L1",1.5,"","",2,"",""']


def test_the_chain_is_drawn_and_written_of_covered_heads_with_their_count():
    runs = runs_of(2)
    for at, run in enumerate(runs):
        variant = run.result.variants[1]
        ones = np.ones_like(variant.perturbation.head_l1)
        is_covered = np.arange(Swept.QUERY_HEADS) < 2 - at  # two heads of each layer, then one
        chain = {
            "sigma_stage1": np.where(is_covered, np.float32(0.9), np.float32(0.5)) * ones,
            "value_mass": ones,
            "theta": ones * (1 + at),
            "theta_hat": np.where(is_covered, np.float32(3), np.float32(1e9)) * ones,
            "theta_relaxed": np.where(is_covered, np.float32(5), np.float32(-1e9)) * ones,
        }
        moved = dataclasses.replace(variant.perturbation, head_l1=ones / 2)
        run.result.variants[1] = dataclasses.replace(variant, perturbation=moved, analysis=chain)
    found = take_together(runs)
    drawn = [AGGREGATE_CHARTS["laboratory"].figure(found, {"quantity": key}) for key in COVERED]
    assert [figure.data[0].x[0] for figure in drawn] == [0.5, 1.5, 3, 5]
    assert {figure.layout.xaxis.title.text for figure in drawn} == {"L1, sigma > 0.5"}
    count = f"{3 * Swept.LAYERS} of {2 * Swept.LAYERS * Swept.QUERY_HEADS}"
    assert all(f"{count} heads" in figure.layout.yaxis.ticktext[0] for figure in drawn)
    lines = [line for line in means_csv(found).splitlines() if "theta, covered heads" in line]
    (line,) = [line for line in lines if line.split(",", 1)[1].startswith('"theta, ')]
    heads = Swept.LAYERS * Swept.QUERY_HEADS
    assert line.endswith(f'"L1",1.5,"","",2,{3 * Swept.LAYERS},{2 * heads}')


def test_the_file_has_the_ends_of_the_intervals():
    table = means_table(take_together(runs_of(MIN_PROMPTS)))
    hidden = {column["key"] for column in table["columns"] if column.get("hidden")}
    assert {"final_low", "final_high"} <= hidden
    _full, *rows = table["rows"]
    assert all(row["cells"]["final_low"]["value"] is not None for row in rows)


def test_the_chain_of_bounds_is_counted_over_all_prompts():
    runs = runs_of(2)
    for run, theta_hat in zip(runs, (4.0, 0.5), strict=True):
        variant = run.result.variants[1]
        ones = np.ones_like(variant.perturbation.head_l1)
        chain = {"theta": ones, "theta_hat": ones * theta_hat, "theta_relaxed": ones * 9}
        sigma = np.where(np.arange(Swept.QUERY_HEADS) < 2, np.float32(0.9), np.float32(0.2)) * ones
        moved = dataclasses.replace(variant.perturbation, head_l1=ones / 2)
        analysis = {**chain, "sigma_stage1": sigma, "value_mass": ones}
        run.result.variants[1] = dataclasses.replace(variant, perturbation=moved, analysis=analysis)
    table = means_table(take_together(runs))
    broken = [row["cells"].get("broken", {}).get("text") for row in table["rows"]]
    assert broken == [None, f"{2 * Swept.LAYERS} of {2 * 2 * Swept.LAYERS}"] + [None] * 15
    assert "Bounds broken" in [column["label"] for column in table["columns"]]


def test_the_alpha_of_a_variant_is_shown_also_where_no_spec_writes_it():
    runs = runs_of(2)
    for run in runs:
        run.result.variants = [
            dataclasses.replace(v, spec="snapkv+critical:budget=64")
            for v in run.result.variants
            if v.spec == CRITICAL
        ]
    found = take_together(runs)
    (row,) = means_table(found)["rows"]
    assert row["cells"]["variant"]["text"] == "SnapKV + CriticalKV, alpha 0.25"
    axis = AGGREGATE_CHARTS["final"].figure(found, {}).layout.yaxis
    assert axis.ticktext == ("SnapKV + CriticalKV<br>budget 64, alpha 0.25",)
