"""A study's tables and charts against its made-up scores."""

import dataclasses
from urllib.parse import parse_qsl, urlsplit

import pytest

from ckv_core.errors import ConfigError
from ckv_core.studies.records import Study
from tests.factories.app import STUDY, study_results, study_samples
from ui.charts.study import STUDY_CHARTS
from ui.studies.routes import results_csv, scores_csv
from ui.tables.study import (
    StudyReading,
    decision_table,
    pairs_table,
    savings_table,
    scores_table,
    tasks_table,
    verdict_value,
)
from ui.tables.study_samples import read_cell, sample_request, samples_table

ALL = study_samples()
SLUG = "study0123456"


def reading(study: Study = STUDY, count: int = len(ALL)) -> StudyReading:
    return StudyReading(SLUG, study, ALL, study_results(ALL[:count]))


def texts(table: dict, key: str) -> list[str]:
    return [row["cells"][key]["text"] for row in table["rows"]]


def test_the_answer_comes_with_its_tolerance_n_and_cautions():
    value = verdict_value(reading())
    assert value["headline"].startswith("Undecided: the smallest budget that looks within 2 points")
    assert value["regimes"].startswith("Two regimes: ")
    states = {m["name"]: g["state"] for g in value["groups"] for m in g["variants"]}
    assert states == {"SnapKV": "cut", "SnapKV + CriticalKV, as printed": "lost", "KeyDiff": "lost"}
    assert any(text.startswith("40 samples: ") for text in value["cautions"])
    wide = verdict_value(reading(dataclasses.replace(STUDY, tolerance=20, budgets=("50%",))))
    assert wide["headline"].startswith("snapkv at 50% keeps the score within 20 points")
    assert wide["groups"][0]["state"] == "kept"


def test_nobody_is_called_better_for_a_lower_l1():
    found = reading()
    rows = {tuple(texts_of(row)): row for row in scores_table(found)["rows"]}
    own = rows[("SnapKV + CriticalKV, as printed", "50%")]["cells"]
    base = rows[("SnapKV", "50%")]["cells"]
    assert own["head_l1"]["value"] < base["head_l1"]["value"]
    assert own["score"]["value"] < base["score"]["value"]
    words = {}
    for row in pairs_table(found)["rows"]:
        *pair, told = (row["cells"][key]["text"] for key in ("method", "budget", "other", "words"))
        words[tuple(pair)] = told
    assert words[("SnapKV + CriticalKV, as printed", "50%", "SnapKV")] == "scores lower"
    assert words[("SnapKV", "50%", "Full cache")] == "no difference shown"


def texts_of(row: dict) -> list[str]:
    return [row["cells"]["method"]["text"], row["cells"]["budget"]["text"]]


def test_variants_of_one_method_do_not_look_alike():
    specs = ("full", "snapkv", "snapkv:pool=none", "snapkv+critical", "snapkv+critical:alpha=0")
    looks = reading(dataclasses.replace(STUDY, variants=specs)).looks
    assert len({(look.color, look.symbol, look.dash) for look in looks.values()}) == len(specs)


def test_scores_are_points_with_intervals_and_n():
    table = scores_table(reading())
    score = dict(zip(map(tuple, map(texts_of, table["rows"])), texts(table, "score"), strict=True))
    assert score[("Full cache", "all")].startswith("100.0 (9")
    assert score[("SnapKV", "10%")].startswith("65.0 (")
    assert texts(table, "n")[0] == "40"
    assert texts(table, "failed")[-2:] == ["1", "1"]
    assert {row["regime"] for row in table["rows"]} == {"", "query-aware", "query-agnostic"}


def test_a_budget_of_equal_score_comes_with_its_interval_and_n():
    found = reading()
    table = savings_table(found)
    rows = {tuple(texts_of(row)): row["cells"] for row in table["rows"]}
    named = "SnapKV + CriticalKV, as printed"
    assert list(rows) == [(named, "10%"), (named, "50%")]
    cells = rows[named, "50%"]
    assert (cells["other"]["text"], cells["needed"]["text"]) == ("SnapKV", "over 50%")
    assert (cells["saved"]["text"], cells["n"]["value"]) == ("", 40)
    nothing = [dataclasses.replace(each, score=0.0) for each in study_results(ALL)]
    empty = savings_table(StudyReading(SLUG, STUDY, ALL, nothing))
    assert (empty["rows"], "scored above 0" in empty["empty"]) == ([], True)
    alone = dataclasses.replace(STUDY, variants=("snapkv", "keydiff"))
    assert savings_table(StudyReading(SLUG, alone, ALL, study_results(ALL)))["rows"] == []


def test_tasks_are_set_beside_one_another_only_where_there_are_several():
    table = tasks_table(reading())
    assert [column["label"] for column in table["columns"][2:]] == ["single", "multi", "Mean"]
    assert [column["unit"] for column in table["columns"][2:4]] == ["n = 20", "n = 19 to 20"]
    cells = {tuple(texts_of(row)): row["cells"] for row in table["rows"]}
    assert cells["KeyDiff", "10%"]["task0"]["text"] == "0.0"  # it loses every even one
    alone = [dataclasses.replace(each, tags={}) for each in ALL]
    assert tasks_table(StudyReading(SLUG, STUDY, alone, study_results(ALL)))["rows"] == []


def test_a_method_with_critical_stands_below_its_base_with_the_difference():
    mixed = ("keydiff", "snapkv+critical:stage2=raw", "snapkv")
    study = dataclasses.replace(STUDY, variants=mixed)
    table = tasks_table(StudyReading(SLUG, study, ALL, study_results(ALL)))
    printed, base = "SnapKV + CriticalKV, as printed", "SnapKV"
    block = ["KeyDiff", base, printed]
    assert texts(table, "method") == ["Full cache", *block, *block]
    assert texts(table, "budget") == ["all", *["10%"] * 3, *["50%"] * 3]
    row = {tuple(texts_of(row)): row["cells"] for row in table["rows"]}
    for at in range(2):
        own, plain = (row[name, "50%"][f"task{at}"] for name in (printed, base))
        assert own["text"] == f"{own['value']:.1f} ({own['value'] - plain['value']:+.1f})"
    tasks = [row[printed, "50%"][f"task{at}"]["value"] for at in range(2)]
    assert row[printed, "50%"]["mean"]["value"] == pytest.approx(sum(tasks) / 2)
    assert "(" not in row[base, "50%"]["task0"]["text"]


def test_a_score_leads_to_its_samples_and_a_sample_to_its_budget():
    found = reading()
    row = next(r for r in tasks_table(found)["rows"] if texts_of(r) == ["KeyDiff", "50%"])
    address = urlsplit(row["cells"]["task1"]["href"])
    asked = dict(parse_qsl(address.query, keep_blank_values=True))
    cell = read_cell(found, asked)
    assert cell is not None
    assert (address.path, asked["id"]) == ("/study", SLUG)
    assert cell.words(found) == "KeyDiff at 50%, task multi"
    table = samples_table(found, cell)
    assert table["columns"][2]["label"] == "KeyDiff at 50%, task multi"
    ids = texts(table, "id")
    assert len(ids) == 20
    assert all(int(name[1:]) % 2 for name in ids)
    own = ("keydiff", "50%")
    scores = {r.sample: r.score for r in found.results if (r.variant, r.budget) == own}
    for name, line in zip(ids, table["rows"], strict=True):
        score = scores[name]
        assert line["cells"]["score"]["value"] == (None if score is None else 100 * score)
        assert line["cells"]["id"]["href"].endswith(f"&sample={name}&budget=50%25")
    assert sample_request(STUDY, ALL, "s003", "50%").defaults["budget"] == "50%"
    assert sample_request(STUDY, ALL, "s003", "7%").defaults["budget"] == "10%"
    scored = next(r for r in scores_table(found)["rows"] if texts_of(r) == ["Full cache", "all"])
    asked = dict(parse_qsl(urlsplit(scored["cells"]["score"]["href"]).query))
    full = read_cell(found, asked)
    assert full is not None
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
    spread = [row["cells"]["spread"]["value"] for row in table["rows"]]
    assert spread == sorted(spread, reverse=True)
    cells = {row["cells"]["id"]["text"]: row["cells"] for row in table["rows"]}
    assert cells["s003"]["id"]["href"] == f"/?study={SLUG}&sample=s003"
    assert cells["s007"]["failed"]["text"].startswith("2: The budget of 10 holds not")
    assert (cells["s003"]["best"]["text"], cells["s001"]["best"]["text"]) == (
        "KeyDiff at 50%: 100",
        "",
    )
    request = sample_request(STUDY, ALL, "s003")
    assert (request.answer, request.defaults["budget"]) == ("7003", "10%")
    assert request.variants == ("full", *STUDY.variants)
    request.validate()
    with pytest.raises(ConfigError, match="no sample"):
        sample_request(STUDY, ALL, "elsewhere")


def test_a_study_without_results_is_shown_and_has_no_charts():
    empty = reading(count=0)
    assert verdict_value(empty)["headline"] == "There is no result yet."
    assert verdict_value(empty)["groups"] == []
    assert decision_table(empty)["rows"]
    assert tasks_table(empty)["rows"]
    assert [chart.name for chart in STUDY_CHARTS.values() if chart.has_data(empty)] == []


@pytest.mark.parametrize("name", STUDY_CHARTS)
def test_a_chart_draws_what_the_table_says(name):
    found = reading()
    figure = STUDY_CHARTS[name].figure(found, {"point": "1"})
    assert figure is not None
    if name == "samples":
        base, own = figure.data
        assert (base.name, own.name) == ("SnapKV", "SnapKV + CriticalKV, as printed")
        by_sample = {(r.sample, r.variant): r.head_l1 for r in found.results if r.budget == "10%"}
        for trace, variant in ((base, "snapkv"), (own, "snapkv+critical:stage2=raw")):
            assert [by_sample[at, variant] for at in trace.customdata] == list(trace.y)
        assert list(base.y) == sorted(base.y)
        lower = sum(own.y < base.y)
        assert f"Lower in {lower} of {len(base.y)} samples" in figure.layout.title.subtitle.text
        return
    if name == "needles":
        ((low, high),) = [(float(figure.data[0].z.min()), float(figure.data[0].z.max()))]
        assert 0 <= low <= high <= 100
        assert list(figure.data[0].x) == ["1,024", "2,048"]
        assert len(figure.data[1].x) == 0  # the full cache answers everywhere
        n, score, address = figure.data[0].customdata[1][0]
        assert score == f"{figure.data[0].z[1][0]:.0f}"
        cell = read_cell(found, dict(parse_qsl(urlsplit(address).query)))
        assert cell is not None
        assert cell.words(found) == "SnapKV at 10%, length 1024, depth 0.35"
        assert n == len(samples_table(found, cell)["rows"]) == 5
        return
    names = [trace.name for trace in figure.data]
    assert names[0] == "SnapKV, query-aware"
    assert names[-1] == "KeyDiff, query-agnostic"
    assert sorted(map(float, figure.data[0].y)) == [65.0, 100.0]


def test_the_files_have_a_line_for_each_point_and_result():
    found = reading()
    assert len(scores_csv(found).splitlines()) == 1 + 7
    assert len(results_csv(found).splitlines()) == 1 + 7 * 40
