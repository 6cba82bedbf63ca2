"""A study's tables and charts against its made-up scores."""

from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

import pytest

from ckv_core.errors import ConfigError
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.runs import sample_request
from tests.factories.app import STUDY, study_results, study_samples
from ui.charts.study import STUDY_CHARTS
from ui.run.routes import SAMPLE_TABLES
from ui.tables.decision import (
    bounds_csv,
    bounds_table,
    decision_line,
    decision_table,
    scores_table,
)
from ui.tables.sample_list import read_cell, samples_table
from ui.tables.samples import figures_table, savings_table, tasks_table

ALL = study_samples()
SLUG = "study0123456"
PRINTED = "CriticalKV-SnapKV (paper)"


def reading(count: int = len(ALL), **changes) -> Reading:
    """The study, perhaps with other settings, and the results of some samples."""
    return Reading(replace(STUDY, **changes), ALL, study_results(ALL[:count]), SLUG)


def texts(table: dict, key: str) -> list[str]:
    return [row["cells"][key]["text"] for row in table["rows"]]


def by_point(table: dict) -> dict[tuple[str, str], dict]:
    """Cells by method and budget."""
    cells = [row["cells"] for row in table["rows"]]
    return {
        (each["method"]["text"], each["budget"]["text"].replace(" ", "")): each for each in cells
    }


def by_score(found: Reading) -> dict[tuple[str, str], dict]:
    """Cells of the table of all figures by method and budget."""
    cells = [row["cells"] for row in figures_table(found)["rows"]]
    return {
        (c["variant"]["text"], c.get("budget", {}).get("text", "").replace(" ", "")): c
        for c in cells
    }


def asked_by(address: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(address).query, keep_blank_values=True))


# --- the answer, scores and pairs -----------------------------------------------------------


def test_the_answer_comes_with_its_tolerance_n_and_cautions():
    value = reading().verdict.to_json()
    assert value["headline"].startswith("Cannot tell yet: SnapKV at 50 % may lose up to")
    assert value["regimes"].startswith("Query-aware methods ")
    states = {m["name"]: g["state"] for g in value["groups"] for m in g["variants"]}
    assert states == {"SnapKV": "cut", PRINTED: "cut", "KeyDiff": "lost"}
    assert any(text.startswith("With 3 methods, 40 samples can") for text in value["cautions"])
    wide = reading(tolerance=20, budgets=("50%",)).verdict.to_json()
    assert wide["headline"].startswith("SnapKV at 50 % stays within your tolerance of 20")
    assert wide["groups"][0]["state"] == "kept"


def test_each_method_has_one_decision_and_the_budget_below_it_its_own():
    found = reading(tolerance=20)
    lines = [row["cells"] for row in decision_table(found)["rows"]]
    told = [(c["method"]["text"], c["decision"]["text"], c["decision"]["outcome"]) for c in lines]
    assert told[:2] == [
        ("SnapKV", "Keeps from 50 %", "answered"),
        ("at 10 %", "Cannot tell yet", "none"),
    ]
    assert lines[0]["why"]["text"].startswith("loses at most ")
    assert lines[1]["why"]["text"].startswith("35 points lost at 10 %, could be up to ")
    assert decision_table(found)["rows"][1]["look"] is None
    bounds = by_point(bounds_table(found))
    assert bounds["SnapKV", "10%"]["loss"]["value"] == pytest.approx(35)
    assert len(bounds_csv(found).splitlines()) == 1 + 3 * 2


def test_the_list_of_runs_has_the_decision_on_the_best_method():
    lines = [
        decision_line(reading(**changes).decision)
        for changes in ({"tolerance": 20}, {}, {"variants": ("keydiff",), "budgets": ("10%",)})
    ]
    told = [(line["outcome"], line["words"]) for line in lines]
    assert told == [
        ("answered", "SnapKV keeps from 50 %"),
        ("none", "Cannot tell yet"),
        ("missed", "KeyDiff loses more than 5 points"),
    ]
    assert lines[0]["more"].startswith("loses at most ")


def test_scores_stand_by_method_and_budget_with_their_intervals():
    table = scores_table(reading())
    rows = {row["cells"]["method"]["text"]: row["cells"] for row in table["rows"]}
    assert [column["label"] for column in table["columns"][1:]] == [
        "10 %",
        "50 %",
        "At 50 %, from 0 to 100",
    ]
    assert next(iter(rows)) == "Full cache"
    assert "b0" not in rows["Full cache"]
    own = by_score(reading())["SnapKV", "10%"]["score"]
    ends = [round(float(end)) for end in own["text"][8:-1].replace(" %", "").split(" to ")]
    cell = rows["SnapKV"]["b0"]
    assert (cell["text"], cell["more"]) == ("65", f"{ends[0]}–{ends[1]}")  # noqa: RUF001
    low, mean, high = rows["SnapKV"]["strip"]["strip"]
    assert low < mean == high == 1.0
    assert asked_by(cell["href"]) == {"id": SLUG, "variant": "snapkv", "budget": "10%"}


def test_the_bounds_are_drawn_against_the_tolerance():
    figure = STUDY_CHARTS["bound"].figure(reading(), {})
    refused = [
        replace(one, state="failed", score=None, for_good=True) if one.budget == "10%" else one
        for one in reading().results
    ]
    found = bounds_table(replace(reading(), results=refused))
    outcomes = {key[1]: cells["outcome"]["text"] for key, cells in by_point(found).items()}
    assert outcomes["10%"] == "Too few results"
    assert outcomes["50%"] != "Too few results"
    bounds = by_point(bounds_table(reading()))
    for trace in figure.data:
        drawn = [bounds[trace.name, budget]["at_most"]["value"] for budget, _ in trace.customdata]
        assert list(trace.y) == pytest.approx(drawn)
    band, edge = figure.layout.shapes
    assert (band.y0, band.y1, edge.y0) == (0, 5, 5)
    labels = [each.text for each in figure.layout.annotations if each.name == "end"]
    assert sorted(labels) == sorted(trace.name for trace in figure.data)
    # It is as high as the list of decisions beside it.
    one = STUDY_CHARTS["bound"].figure(reading(variants=("full", "snapkv")), {})
    assert one.layout.meta["height"] < figure.layout.meta["height"] < 420


def test_nobody_is_called_better_for_a_lower_l1():
    found = reading()
    rows = by_score(found)
    own, base = rows[PRINTED, "50%"], rows["SnapKV", "50%"]
    assert own["head"]["value"] < base["head"]["value"]
    assert own["score"]["value"] < base["score"]["value"]
    assert own["score_base"]["text"].startswith("-")
    assert " after Holm" in own["score_base"]["text"]
    assert rows["SnapKV", "50%"]["score_full"]["text"].startswith("+0.0 %")


def test_a_budget_of_equal_score_comes_with_its_interval_and_n():
    rows = [row["cells"] for row in savings_table(reading())["rows"]]
    texts = [(cells["method"]["text"], cells["matches"]["text"]) for cells in rows]
    assert texts == [(PRINTED, "SnapKV at 10 %"), (PRINTED, "SnapKV at 50 %")]
    assert rows[1]["score"]["text"].startswith("over 50 % (")
    assert (rows[1]["score"]["value"], rows[1]["n"]["value"]) == (None, 40)
    nothing = [replace(each, score=0.0) for each in study_results(ALL)]
    empty = savings_table(Reading(STUDY, ALL, nothing, SLUG))
    assert (empty["rows"], "scored above 0" in empty["empty"]) == ([], True)
    assert savings_table(reading(variants=("snapkv", "keydiff")))["rows"] == []


# --- tasks and samples ----------------------------------------------------------------------


def test_tasks_are_set_beside_one_another_only_where_there_are_several():
    table = tasks_table(reading())
    assert [column["label"] for column in table["columns"][2:]] == ["single", "multi", "Mean"]
    assert [column["unit"] for column in table["columns"][2:4]] == ["n = 20", "n = 19 to 20"]
    assert by_point(table)["KeyDiff", "10%"]["task0"]["text"] == "0.0"  # it loses every even one
    alone = [replace(each, tags={}) for each in ALL]
    assert tasks_table(Reading(STUDY, alone, study_results(ALL), SLUG))["rows"] == []


def test_a_score_leads_to_its_samples_and_a_sample_to_its_budget():
    found = reading()
    address = by_point(tasks_table(found))["KeyDiff", "50%"]["task1"]["href"]
    asked = asked_by(address)
    assert (urlsplit(address).path, asked["id"]) == ("/run", SLUG)
    cell = read_cell(found, asked)
    assert cell.words(found) == "KeyDiff at 50 %, task multi"
    table = samples_table(found, cell)
    assert [column["label"] for column in table["columns"][2:4]] == ["Expected", "KeyDiff"]
    ids = texts(table, "id")
    assert len(ids) == 20
    assert all(int(name[1:]) % 2 for name in ids)
    own = ("keydiff", "50%")
    scores = {r.sample: r.score for r in found.results if (r.variant, r.budget) == own}
    for name, line in zip(ids, table["rows"], strict=True):
        score = scores[name]
        assert line["cells"]["m0"]["value"] == (None if score is None else 100 * score)
        assert line["cells"]["id"]["href"].endswith(f"&sample={name}&budget=50%25")
    assert sample_request(STUDY, ALL, "s003", "50%").budgets == ("50%",)
    assert sample_request(STUDY, ALL, "s003", "7%").budgets == ("10%",)
    scored = by_score(found)["Full cache", ""]["score"]
    full = read_cell(found, asked_by(scored["href"]))
    assert len(samples_table(found, full)["rows"]) == 40


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"variant": "snapkv"},
        {"variant": "snapkv", "budget": "7%"},
        {"variant": "<b>", "budget": "10%"},
        {"variant": "snapkv", "budget": "10%", "task": "elsewhere"},
    ],
)
def test_an_address_that_names_no_cell_shows_all_samples(asked):
    assert read_cell(reading(), asked) is None


def test_samples_where_methods_disagree_come_first_and_open_in_compare():
    table = samples_table(reading())
    cells = {row["cells"]["id"]["text"]: row["cells"] for row in table["rows"]}
    # At 10 % all three miss sample 0 and none misses sample 1.
    assert "s001" not in cells
    assert "s000" not in cells
    assert [column["look"]["symbol"] for column in table["columns"][3:]]
    assert cells["s003"]["id"]["href"] == f"/?study={SLUG}&sample=s003&budget=10%25"
    keydiff = cells["s007"]["m2"]
    assert (keydiff["outcome"], keydiff["text"]) == ("failed", "")
    assert keydiff["title"].startswith("failed: The budget of 10 holds not")
    missed = cells["s003"]["m0"]
    assert (missed["outcome"], missed["text"], missed["value"]) == ("missed", "7", 0)
    whole = samples_table(reading(), read_cell(reading(), {"variant": "snapkv", "budget": "50%"}))
    assert len(whole["rows"]) == len(ALL)
    request = sample_request(STUDY, ALL, "s003")
    assert (request.answer, request.budgets) == ("7003", ("10%",))
    assert request.variants == ("full", *STUDY.variants)
    request.validate()
    with pytest.raises(ConfigError, match="no sample"):
        sample_request(STUDY, ALL, "elsewhere")


# --- charts and files -----------------------------------------------------------------------


def test_a_study_without_results_is_shown_and_has_no_charts():
    empty = reading(count=0)
    assert empty.verdict.headline == "There is no result yet."
    assert empty.verdict.groups == ()
    assert decision_table(empty)["rows"]
    assert tasks_table(empty)["rows"]
    assert [chart.name for chart in STUDY_CHARTS.values() if chart.has_data(empty)] == []


@pytest.mark.parametrize("against", ["budget", "memory", "head"])
def test_a_chart_of_scores_draws_what_the_table_says(against):
    chosen = {"quantity": "score", "against": against}
    snapkv, *_, keydiff = STUDY_CHARTS["budget"].figure(reading(), chosen).data
    assert (snapkv.name, keydiff.name) == ("SnapKV: query-aware", "KeyDiff: query-agnostic")
    table = by_score(reading())
    for at, (budget, n) in enumerate(snapkv.customdata):
        own = table["SnapKV", budget.replace(" ", "")]
        ends = [
            snapkv.y[at] - snapkv.error_y.arrayminus[at],
            snapkv.y[at] + snapkv.error_y.array[at],
        ]
        assert str(n) == own["n"]["text"]
        mean, low, high = (f"{end:.1f} %" for end in (snapkv.y[at], *ends))
        assert own["score"]["text"] == f"{mean} ({low} to {high})"


def test_samples_are_drawn_by_the_rising_l1_of_the_base():
    found = reading()
    figure = STUDY_CHARTS["samples"].figure(found, {})
    base, own = figure.data
    assert (base.name, own.name) == ("SnapKV", PRINTED)
    by_sample = {
        (r.sample, r.variant): r.figures.get("head") for r in found.results if r.budget == "10%"
    }
    for trace, variant in ((base, "snapkv"), (own, "snapkv+critical:stage2=raw")):
        assert [by_sample[at, variant] for at in trace.customdata] == list(trace.y)
    assert list(base.y) == sorted(base.y)
    lower = sum(own.y < base.y)
    assert f": lower in {lower} of n = {len(base.y)} samples" in figure.layout.title.subtitle.text


def test_a_needle_cell_has_its_score_and_leads_to_its_samples():
    found = reading()
    cells, crosses = STUDY_CHARTS["needles"].figure(found, {"point": "1"}).data
    assert 0 <= float(cells.z.min()) <= float(cells.z.max()) <= 100
    assert list(cells.x) == ["1,024", "2,048"]
    assert len(crosses.x) == 0  # the full cache answers everywhere
    n, score, address = cells.customdata[1][0]
    assert score == f"{cells.z[1][0]:.0f}"
    cell = read_cell(found, asked_by(address))
    assert cell.words(found) == "SnapKV at 10 %, length 1024, depth 0.35"
    assert n == len(samples_table(found, cell)["rows"]) == 5


def test_the_files_have_a_line_for_each_point_and_result():
    found = reading()
    assert len(SAMPLE_TABLES["results"](found).splitlines()) == 1 + 7 * 40
