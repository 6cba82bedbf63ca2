"""Several runs together: their table and charts, what is refused, the page and its routes."""

import dataclasses
from datetime import timedelta
from types import SimpleNamespace

import gradio as gr
import numpy as np
import pytest

from ckv_core.analysis.aggregate import budget_curves
from ckv_core.errors import ConfigError
from ckv_core.experiment.stats import MIN_PROMPTS
from ckv_core.results.chain import COVERED
from tests.factories.app import START, FakeServices, prompt_run, runs_of, store_run
from tests.factories.runs import Swept
from tests.ui.served_app import by
from ui.aggregate.chosen import read_slugs, take_together
from ui.aggregate.page import AggregatePage, means_table
from ui.charts.aggregate import AGGREGATE_CHARTS, means_csv
from ui.looks.palette import looks_of
from ui.results.chart_views import aggregate_value
from ui.tables.aggregate import MAIN_FIGURES
from ui.tables.pairs import pairs_table

CRITICAL = "snapkv+critical:budget=64,alpha=0.25"


def runs_with(count: int, *specs: str, **changes):
    """Runs of these variants alone, changed; of all without a SPEC."""
    runs = runs_of(count)
    for run in runs:
        run.result.variants = [
            dataclasses.replace(v, **changes)
            for v in run.result.variants
            if not specs or v.spec in specs
        ]
    return runs


def figure_of(found, name: str, **chosen: str):
    return AGGREGATE_CHARTS[name].figure(found, chosen)


def page_with(*runs) -> AggregatePage:
    with gr.Blocks(analytics_enabled=False):
        return AggregatePage(FakeServices(*runs))


# --- the table ------------------------------------------------------------------------------


def test_a_variant_that_was_run_twice_on_a_prompt_counts_once_by_its_newest_run():
    newer = prompt_run(1, better=0.9, created_at=START + timedelta(days=1))
    for runs in ([*runs_of(2), newer], [newer, *runs_of(2)]):  # whatever the address says first
        found = take_together(runs)
        (critical,) = (member for member in found.members if member.spec == CRITICAL)
        assert (found.n, critical.figures["final"].n) == (2, 2)
        assert critical.figures["final"].mean == pytest.approx(100 * (0.5 + 0.9) / 2)


def test_rows_of_fewer_prompts_say_their_own_n_and_the_file_has_the_intervals_ends():
    runs = runs_of(MIN_PROMPTS)
    runs[0].result.variants = [v for v in runs[0].result.variants if v.spec != CRITICAL]
    found = take_together(runs)
    table = means_table(found)
    hidden = {column["key"] for column in table["columns"] if column.get("hidden")}
    assert {"final_low", "final_high"} <= hidden
    rows = {row["cells"]["spec"]["text"]: row["cells"] for row in table["rows"]}
    critical = rows.pop(CRITICAL)
    assert (critical["n"]["value"], critical["budget"]["value"]) == (MIN_PROMPTS - 1, 64)
    assert critical["final_low"]["value"] is None
    assert {row["n"]["value"] for row in rows.values()} == {MIN_PROMPTS}
    del rows["full"]  # nothing to be far from
    assert all(row["final_low"]["value"] is not None for row in rows.values())
    fewer, few = found.notes
    assert fewer.startswith("1 of 16 variants were run on fewer than all 10 prompts (snapkv+crit")
    assert few.startswith("An interval of L1, KL or times needs at least 10 prompts")


def test_the_full_cache_is_shown_with_what_it_was_judged_by_and_as_a_pair():
    runs = runs_with(3, "full", CRITICAL, answer_found=False, stopped="eos")
    for run in runs[:2]:
        run.result.variants[0] = dataclasses.replace(run.result.variants[0], answer_found=True)
    found = take_together(runs)
    full, critical = means_table(found)["rows"]
    assert full["cells"]["variant"]["text"] == "Full cache"
    assert full["cells"]["answer"]["text"].startswith("66.7% (20.8% to 93.9%)")
    assert critical["cells"]["answer"]["text"] == "0.0% (0.0% to 56.1%)"
    (pair,) = pairs_table(found)["rows"]
    assert pair["cells"]["other"]["text"] == "Full cache"
    assert pair["cells"]["answer"]["text"] == "+0 -2, p = 0.5"


def test_answers_that_were_cut_are_counted_apart_with_a_warning():
    runs = runs_with(2, "full", CRITICAL, answer_found=False, stopped="length")
    runs[0].result.variants[1] = dataclasses.replace(runs[0].result.variants[1], answer_found=True)
    found = take_together(runs)
    assert any("3 of 4 texts were cut at " in note for note in found.notes)
    full, critical = means_table(found)["rows"]
    assert (full["cells"]["cut"]["text"], critical["cells"]["cut"]["text"]) == ("2 of 2", "1 of 2")
    assert "answer" not in full["cells"]  # nothing is known, rather than 0 %
    assert critical["cells"]["answer"]["text"].endswith(", n = 1")


def test_runs_whose_bounds_took_different_alphas_say_so_once():
    runs = runs_of(2)
    for run, alpha in zip(runs, (0.0, 1.0), strict=True):
        arrays = {
            "sigma_stage1": np.array([[0.4, 0.6]], np.float32),
            "stage1_alpha": np.array([alpha], np.float32),
        }
        run.result.variants = [dataclasses.replace(v, analysis=arrays) for v in run.result.variants]
    found = take_together(runs)
    (note,) = [note for note in found.notes if "alphas of stage 1 differ (0, 1)" in note]
    plain = [m for m in found.members if "+" not in m.spec and m.spec != "full"]
    assert [member.alpha_note for member in plain] == [note] * len(Swept.BUDGETS)


def test_the_alpha_of_a_variant_is_shown_also_where_no_spec_writes_it():
    found = take_together(runs_with(2, CRITICAL, spec="snapkv+critical:budget=64"))
    (row,) = means_table(found)["rows"]
    assert row["cells"]["variant"]["text"] == "SnapKV + CriticalKV, alpha 0.25"
    axis = figure_of(found, "final").layout.yaxis
    assert axis.ticktext == ("SnapKV + CriticalKV<br>budget 64, alpha 0.25",)


@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        (runs_with(2, "full"), "full cache alone"),
        ([prompt_run(1)], "at least two runs"),
        ([prompt_run(1), prompt_run(2, state="failed")], "runabc2 is not done"),
    ],
    ids=["nothing compared", "one", "unfinished"],
)
def test_what_cannot_be_taken_together_is_refused(runs, sentence):
    with pytest.raises(ConfigError, match=sentence):
        take_together(runs)


@pytest.mark.parametrize("text", ["../../etc/passwd", "abcdef,<b>", "a\ud800"])
def test_a_text_that_is_no_name_is_refused(text):
    with pytest.raises(ConfigError, match="is not the name of a run"):
        read_slugs(text)


# --- the charts -----------------------------------------------------------------------------


def test_there_is_a_chart_of_what_was_measured_and_of_nothing_else():
    found = take_together(runs_of(2))
    names = [chart["name"] for chart in aggregate_value(["a", "b"], found)["charts"]]
    known = [figure.key for figure in found.known(MAIN_FIGURES)]
    assert names == ["budget", *known, "layers", "wins"]
    assert {"kl", "final", "head", "improved_heads"} <= {*known}
    assert figure_of(found, "agreement") is None
    at = next(at for at, m in enumerate(found.members) if m.spec == CRITICAL)
    title = figure_of(found, "wins", variant=str(at)).layout.title
    assert "42 of 42 query heads" in title.subtitle.text
    assert title.text.startswith("SnapKV + CriticalKV, budget 64, alpha 0.25: ")


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
            # Below theta in the first run, which breaks the chain.
            "theta_hat": np.where(is_covered, np.float32(0.5 + 5 * at), np.float32(1e9)) * ones,
            "theta_relaxed": np.where(is_covered, np.float32(6), np.float32(-1e9)) * ones,
        }
        moved = dataclasses.replace(variant.perturbation, head_l1=ones / 2)
        run.result.variants[1] = dataclasses.replace(variant, perturbation=moved, analysis=chain)
    found = take_together(runs)
    drawn = [figure_of(found, "diagnostics", quantity=key) for key in COVERED]
    assert [figure.data[0].x[0] for figure in drawn] == [0.5, 1.5, 3, 6]
    assert {figure.layout.xaxis.title.text for figure in drawn} == {"L1, sigma > 0.5"}
    covered, heads = 3 * Swept.LAYERS, 2 * Swept.LAYERS * Swept.QUERY_HEADS
    of_heads = f"{covered} of {heads} heads"
    assert all(of_heads in figure.layout.yaxis.ticktext[0] for figure in drawn)
    lines = [line for line in means_csv(found).splitlines() if "theta, covered heads" in line]
    (line,) = [line for line in lines if line.split(",", 1)[1].startswith('"theta, ')]
    assert line.endswith(f'"L1",1.5,"","",2,{covered},{heads}')
    table = means_table(found)
    assert "Bounds broken" in [column["label"] for column in table["columns"]]
    broken = [row["cells"].get("broken", {}).get("text") for row in table["rows"]]
    assert broken == [None, f"{2 * Swept.LAYERS} of {covered}"] + [None] * 15


def test_a_method_with_its_settings_has_one_look_within_the_page():
    found = take_together(runs_of(2))
    looks: dict[str, set[tuple[str, str]]] = {}
    for row, member in zip(means_table(found)["rows"], found.members, strict=True):
        look = (row["look"]["color"], row["look"]["symbol"])
        looks.setdefault(member.joined.curve_spec, set()).add(look)
    for trace, member in zip(figure_of(found, "final").data, found.members[1:], strict=True):
        looks[member.joined.curve_spec].add((trace.marker.color, trace.marker.symbol))
    curves = [trace for trace in figure_of(found, "budget").data if trace.showlegend is None]
    for trace, curve in zip(curves, budget_curves(found.members), strict=True):
        looks[curve.spec].add((trace.line.color, trace.marker.symbol))
    assert len(looks) == 5  # the full cache and four methods
    assert all(len(used) == 1 for used in looks.values())
    assert len(set.union(*looks.values())) == 5


def test_of_one_budget_every_variant_keeps_the_look_of_its_run():
    runs = runs_of(2)
    for run in runs:
        kept = [v for v in run.result.variants if v.spec == "full" or "budget=64" in v.spec]
        run.result.variants = kept
    rows = means_table(take_together(runs))["rows"]
    variants = runs[0].result.variants
    of_spec = {v.spec: look.value for v, look in zip(variants, looks_of(variants), strict=True)}
    assert [row["look"] for row in rows] == [of_spec[row["cells"]["spec"]["text"]] for row in rows]


# --- the page and its routes ----------------------------------------------------------------


def test_the_address_opens_the_runs_together():
    page = page_with(*runs_of(3))
    asked = SimpleNamespace(query_params={"ids": "runabc0,runabc1, runabc2"})
    text, area, notice, table, *_ = page.open(asked)
    assert (text, area["visible"]) == ("runabc0,runabc1, runabc2", True)
    assert notice["text"].startswith("3 prompts, 17 variants, tiny.")
    assert len(table["rows"]) == 17


@pytest.mark.parametrize("text", ["nosuchrun", "runabc0", "", "x" * 5_000])
def test_what_cannot_be_shown_is_said(text):
    area, notice, *_ = page_with(*runs_of(2)).present(text)
    assert area["visible"] is False
    assert notice["tone"] == "error"
    assert notice["text"].endswith(".")


@pytest.fixture(scope="module")
def guarded(team_app):
    """An app with logins, with two runs of Ann's and one of Bob's."""
    slugs = [
        store_run(team_app.services, run.request, run.result, owner)
        for run, owner in zip(runs_of(3), ("ann", "ann", "bob"), strict=True)
    ]
    return team_app, slugs


PATHS = ("figure/final", "figure/budget", "figure/wins", "budgets.csv", "means.csv", "wins.csv")


@pytest.mark.parametrize("path", PATHS)
def test_charts_and_data_of_several_runs_are_for_whoever_may_read_all_of_them(guarded, path):
    app, (first, second, foreign) = guarded
    with app.client("ann") as ann, app.client() as nobody:
        own = ann.get(f"/several/{first},{second}/{path}")
        assert own.status_code == 200
        assert own.headers["cache-control"] == "no-store"
        mixed = ann.get(f"/several/{first},{foreign}/{path}")
        unknown = ann.get(f"/several/{first},zzz999zzz999/{path}")
        assert (mixed.status_code, unknown.status_code) == (404, 404)
        assert mixed.text.replace(foreign, "") == unknown.text.replace("zzz999zzz999", "")
        assert nobody.get(f"/several/{first},{second}/{path}").status_code == 401
        with by("ann"):
            token = app.services.shares.create(first, "1 day")
        nobody.get(f"/s/{token}")  # a link to one of them opens not both
        assert nobody.get(f"/several/{first},{second}/{path}").status_code == 401


@pytest.mark.parametrize("name", ["figure/nothing", "figure/agreement", "figure/final?x=<b>"])
def test_a_hostile_address_is_answered_plainly(guarded, name):
    app, (first, *_) = guarded
    with app.client("ann") as ann:
        for slugs in (f"{first},{first}", "..%2f..%2fetc", ",", f"{first},<script>"):
            answer = ann.get(f"/several/{slugs}/{name}")
            assert answer.status_code == 404
            assert not answer.headers["content-type"].startswith("text/html")
