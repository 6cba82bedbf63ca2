"""The HTML report: what it carries, what its policy lets run, how it is bounded, who gets it."""

import json
import re

import pytest

from ckv_core.errors import ConfigError
from storage.records import RunNotes
from tests.factories.app import SLUG, SWEEP_SLUG, FakeServices, running, sweep_snapshot
from tests.factories.runs import TEN_TOKENS
from tests.ui.report_reading import HOSTILE, hash_of, hostile_run, opened, run
from tests.ui.run.test_routes import client
from ui.report import charts as report_charts
from ui.report import routes as report_routes
from ui.report.charts import embedded_charts
from ui.report.contents import GROUPS, read_groups
from ui.report.definitions import definitions
from ui.report.report import ReportTooBigError, build_report

pytestmark = pytest.mark.slow
NOTES = RunNotes("my note", ("good", "old"))


@pytest.fixture(scope="module", autouse=True)
def few_figures():
    """Drawing takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_charts, "FIGURES_PER_CHART", 2)
        yield


@pytest.fixture(scope="module")
def file(few_figures):
    """The file of `run`."""
    return build_report(run(), NOTES)


@pytest.fixture(scope="module")
def report(file):
    """What it holds."""
    return opened(file)


# --- what it carries --------------------------------------------------------------------------


def test_it_holds_the_kept_bits_and_the_prompt(report):
    kept = report.value("kept")
    assert [variant["index"] for variant in kept["variants"]] == [1, 2]
    for index in (1, 2):
        bits = run().result.variants[index].retained.bits
        assert report.files[f"/data/{SLUG}/{index}/retained"] == bits
    prompt = json.loads(report.files[f"/data/{SLUG}/prompt"])
    assert prompt["pieces"] == list(TEN_TOKENS.pieces)


def test_every_choice_of_every_chart_has_its_figure(report):
    shown = 0
    for section in ("perturbation", "laboratory"):
        for chart in report.value(section)["charts"]:
            figures = json.loads(report.files[f"/data/{SLUG}/figure/{chart['name']}"])
            wanted = [""]
            for control in chart["controls"]:
                options = [f"{control['name']}={value}" for value, _ in control["options"]]
                wanted = ["&".join(filter(None, (w, o))) for w in wanted for o in options]
            assert sorted(figures) == sorted(wanted)
            assert all(figure["data"] for figure in figures.values())
            assert chart["csv"] == "", "a file has no table beside it"
            shown += 1
    assert shown >= 8
    assert hash_of(report.files["plotly"]) in report.policy


def test_it_says_what_was_asked_and_what_every_number_means(report):
    facts = {row["label"]: row["text"] for row in report.value("run")["rows"]}
    assert facts["Note"] == "my note"
    assert facts["Tags"] == "good, old"
    assert facts["Versions"] == "python 3.11"
    assert "sha256" in facts["Model"]
    columns = report.value("summary")["columns"]
    assert all(column["help"] for column in columns)
    tables = [block for block in report.page["definitions"] if "columns" in block]
    assert len(tables) >= 6
    for table in tables:
        assert {"unit", "n"} <= set(table["columns"])
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}


def test_definitions_are_plain_text():
    blocks = definitions()
    assert {"heading": "Size"} in blocks
    text = json.dumps(blocks)
    assert "`" not in text
    assert "<!--" not in text
    assert "KL(full || variant)" in text


def test_the_strips_of_the_cards_are_inside(report):
    cards = report.value("generations")["cards"]
    addresses = [card["forced"] for card in cards if card["forced"]]
    assert len(addresses) == 2
    assert json.loads(report.files[addresses[0]])["tokens"] == ["one", " two"]


def test_a_sweep_has_its_curves_and_points():
    report = opened(build_report(sweep_snapshot()))
    names = [section["name"] for section in report.page["sections"]]
    assert names == ["verdict", "curves", "savings", "alphas", "points", "run"]
    assert len(report.value("points")["rows"]) > 10
    curves = [name for name in report.files if name.startswith(f"/data/{SWEEP_SLUG}/figure/")]
    assert len(curves) >= 4


def test_a_run_that_failed_early_has_its_settings():
    report = opened(build_report(running(state="failed", reason="No memory.")))
    assert report.value("summary") is None
    assert {"label": "State", "text": "failed. No memory."} in report.value("run")["rows"]


# --- what runs in it --------------------------------------------------------------------------


def test_no_text_of_the_run_is_in_the_markup():
    report = opened(build_report(hostile_run(), RunNotes(HOSTILE, (HOSTILE,))))
    assert "bumped" not in report.markup
    assert report.page["title"] == HOSTILE
    assert report.value("generations")["cards"][0]["token_texts"][0] == HOSTILE


def test_the_policy_lets_two_scripts_run_and_nothing_be_fetched(report):
    rules = dict(rule.strip().split(" ", 1) for rule in report.policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert len(re.findall("'sha256-", rules["script-src"])) == 2
    assert "unsafe" not in rules["script-src"]
    assert not set(rules) & {"connect-src", "font-src", "frame-src", "object-src"}
    head = report.markup.split("<script>")[0]
    assert not re.search(r"url\(['\"]?(?!['\"]?data:)|@import|src=|href=\"(?!data:,)", head)


# --- its size ---------------------------------------------------------------------------------


def test_one_byte_over_the_limit_is_refused_by_name(file):
    assert build_report(run(), NOTES, limit_bytes=len(file)) == file
    told = r"leave something out. It holds: charts .*, kept .*--without charts"
    with pytest.raises(ReportTooBigError, match=told):
        build_report(run(), NOTES, limit_bytes=len(file) - 1)


@pytest.mark.parametrize(
    ("groups", "gone"),
    [(["kept", "strips"], {"/retained", "/prompt", "/forced"}), (["charts"], {"/figure/"})],
)
def test_what_is_left_out_is_gone_and_named(groups, gone):
    report = opened(build_report(run(), without=groups))
    assert not [name for name in report.files for part in gone if part in name]
    assert ("plotly" in report.files) == (groups != ["charts"])
    told = ", ".join(GROUPS[group] for group in groups)
    assert {"label": "Left out of the report", "text": told} in report.value("run")["rows"]
    assert "left out" in json.dumps(report.page["sections"])


def test_only_known_groups_can_be_left_out():
    assert read_groups(" charts,kept ,") == ["kept", "charts"]
    with pytest.raises(ConfigError, match="kept, charts, strips"):
        read_groups("kept,all")


def test_many_choices_are_cut_and_the_cut_is_told(monkeypatch):
    quantity = {"name": "quantity", "label": "", "options": [[f"q{i}", ""] for i in range(50)]}
    variant = {"name": "variant", "label": "", "options": [[str(i), ""] for i in range(7)]}
    chart = {"name": "heads", "title": "Heads", "csv": "heads", "controls": [variant, quantity]}
    monkeypatch.setattr(report_charts, "FIGURES_PER_CHART", 20)
    value, words = embedded_charts({"heading": "", "text": "empty", "charts": [chart]})
    kept = [len(control["options"]) for control in value["charts"][0]["controls"]]
    assert kept == [7, 20 // 7]
    assert "Heads" in words
    assert len(quantity["options"]) == 50


# --- its route --------------------------------------------------------------------------------


def test_the_report_is_a_download():
    answer = client(FakeServices(run())).get(f"/data/{SLUG}/report.html?without=charts")
    assert answer.headers["content-disposition"] == f'attachment; filename="ckv-{SLUG}.html"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert {"label": "Note", "text": "a note"} in opened(answer.content).value("run")["rows"]


def test_what_cannot_be_made_is_one_sentence(monkeypatch):
    routes = client(FakeServices(run()))
    assert routes.get(f"/data/{SLUG}/report.html?without=x").status_code == 422
    monkeypatch.setattr("ui.report.report.build_report.__defaults__", (None, (), 1000))
    answer = routes.get(f"/data/{SLUG}/report.html")
    assert answer.status_code == 422
    assert "without=" in answer.text
    early = client(FakeServices(running())).get(f"/data/{SLUG}/report.html")
    assert (early.status_code, early.text) == (404, report_routes.NOT_YET)
    assert routes.get("/data/zzz999zzz999/report.html").text == report_routes.NO_RUN


def test_a_third_report_at_once_is_turned_away(monkeypatch):
    routes = client(FakeServices(run()))
    seen = []

    def slow(*_):
        if len(seen) < report_routes.AT_A_TIME:
            seen.append(routes.get(f"/data/{SLUG}/report.html").status_code)
        return b""

    monkeypatch.setattr(report_routes, "build_report", slow)
    assert routes.get(f"/data/{SLUG}/report.html").status_code == 200
    assert sorted(seen) == [200, 503]
    assert routes.get(f"/data/{SLUG}/report.html").status_code == 200
