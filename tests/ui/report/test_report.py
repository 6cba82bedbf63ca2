"""The HTML report: what it carries, who gets it, and how it works in a browser from disk."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from storage.records import RunNotes
from tests.factories.app import SLUG, SWEEP_SLUG, FakeServices, running, sweep_snapshot
from tests.factories.runs import TEN_TOKENS
from tests.ui.report_reading import BUMP, HOSTILE, hash_of, hostile_run, opened, run
from tests.ui.run.test_routes import client
from ui.report import report as report_charts
from ui.report import routes as report_routes
from ui.report.report import ReportTooBigError, build_report, embedded_charts

pytestmark = pytest.mark.slow
NOTES = RunNotes("my note")
INJECTED = (
    "img, svg[onload], iframe, a[href^='javascript'], body > script:not([data-file]) ~ script"
)


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


@pytest.fixture(scope="module")
def files(file, tmp_path_factory) -> dict[str, Path]:
    """Reports on disk."""
    folder = tmp_path_factory.mktemp("reports")
    hostile = build_report(hostile_run(), RunNotes(HOSTILE))
    found = {"plain": file, "hostile": hostile, "sweep": build_report(sweep_snapshot())}
    for name, data in found.items():
        (folder / f"{name}.html").write_bytes(data)
    return {name: folder / f"{name}.html" for name in found}


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
    for section in ("perturbation", "diagnostics"):
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
    assert facts["Versions"] == "python 3.11"
    assert "sha256" in facts["Model"]
    columns = report.value("summary")["columns"][2:]  # behind name and SPEC
    assert all(column["help"] for column in columns)


def test_a_sweep_has_its_curves_and_points(files):
    report = opened(files["sweep"].read_bytes())
    names = [section["name"] for section in report.page["sections"]]
    assert names == ["verdict", "grid", "curves", "savings", "points", "run"]
    assert len(report.value("points")["rows"]) > 10
    figures = [name for name in report.files if name.startswith(f"/data/{SWEEP_SLUG}/figure/")]
    names = {name.rpartition("/")[2] for name in figures}
    assert names == {"sweep"}


def test_a_run_that_failed_early_has_its_settings():
    report = opened(build_report(running(state="failed", reason="No memory.")))
    assert report.value("summary") is None
    assert {"label": "State", "text": "failed. No memory."} in report.value("run")["rows"]


# --- what runs in it --------------------------------------------------------------------------


def test_no_text_of_the_run_is_in_the_markup(files):
    report = opened(files["hostile"].read_bytes())
    assert "bumped" not in report.markup
    assert report.page["title"] == HOSTILE
    assert HOSTILE in report.value("answers")["rows"][0]["pieces"][0][0]


def test_the_policy_lets_two_scripts_run_and_nothing_be_fetched(report):
    rules = dict(rule.strip().split(" ", 1) for rule in report.policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert len(re.findall("'sha256-", rules["script-src"])) == 2
    assert "unsafe" not in rules["script-src"]
    assert not set(rules) & {"connect-src", "font-src", "frame-src", "object-src"}
    head = report.markup.split("<script>")[0]
    assert not re.search(r"url\(['\"]?(?!['\"]?data:)|@import|src=|href=\"(?!data:,)", head)


# --- its size ---------------------------------------------------------------------------------


def test_one_byte_over_the_limit_is_refused(file):
    assert build_report(run(), NOTES, limit_bytes=len(file)) == file
    with pytest.raises(ReportTooBigError, match="export it as a bundle"):
        build_report(run(), NOTES, limit_bytes=len(file) - 1)


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


def test_what_cannot_be_made_is_one_sentence(monkeypatch):
    routes = client(FakeServices(run()))
    monkeypatch.setattr("ui.report.report.build_report.__defaults__", (None, 1000))
    answer = routes.get(f"/data/{SLUG}/report.html")
    assert answer.status_code == 422
    early = client(FakeServices(running())).get(f"/data/{SLUG}/report.html")
    assert (early.status_code, early.text) == (404, report_routes.NOT_YET)
    assert routes.get("/data/zzz999zzz999/report.html").status_code == 404


def test_users_make_two_reports_at_a_time_and_guests_one_beside_them(monkeypatch):
    services = FakeServices(run())
    routes = client(services)
    # Each is asked for while those before it are being made.
    others, seen = iter(["guest", "user", "user", "user"]), []

    def ask(who: str) -> int:
        services.is_guest = who == "guest"
        return routes.get(f"/data/{SLUG}/report.html").status_code

    def slow(*_):
        seen.extend([(who, ask(who)) for who in others])
        return b""

    monkeypatch.setattr(report_routes, "build_report", slow)
    assert ask("guest") == 200
    assert sorted(seen) == [("guest", 503), ("user", 200), ("user", 200), ("user", 503)]
    assert (ask("guest"), ask("user")) == (200, 200)


# --- in a browser, opened from disk without a network -----------------------------------------


@dataclass
class Visit:
    """One open report, and what it did that it must not do."""

    page: Page
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def visit(browser, files) -> Iterator[Callable[..., Visit]]:
    """Open a report, once; in the end none may have asked for anything or failed anywhere."""
    visits: dict[tuple[str, int, str], Visit] = {}

    def opener(name: str, width: int = 1280, theme: str = "light") -> Visit:
        if (name, width, theme) in visits:
            return visits[name, width, theme]
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=theme,
            offline=True,
            bypass_csp=theme == "dark",  # there axe is run, which is a script too
        )
        visit = Visit(context.new_page())
        visit.page.on("request", lambda request: visit.requests.append(request.url))
        visit.page.goto(files[name].as_uri())
        visit.page.wait_for_selector("body[data-drawn]")
        visits[name, width, theme] = visit
        return visit

    yield opener
    for each in visits.values():
        asked = [url for url in each.requests if not url.startswith(("data:", "blob:"))]
        each.page.context.close()
        assert len(asked) == 1, asked
        assert asked[0].startswith("file://")


def see(page: Page, parts: Locator) -> None:
    """Scroll until these have been drawn: maps and charts."""
    for part in parts.all():
        part.scroll_into_view_if_needed()
    for chart in parts.and_(page.locator(".ckv-chart")).all():
        chart.locator(".main-svg").first.wait_for()


def test_all_works_without_a_network_and_hostile_text_is_shown_and_never_runs(visit):
    page = visit("hostile").page
    see(page, page.locator("[data-component=kept-tokens], .ckv-chart"))
    page.wait_for_selector(".ckv-host[data-state=shown]")
    expect(page.locator(".ckv-map-row[data-variant] .ckv-map-base")).to_have_count(2)
    more_than_a_ground = """canvas => new Set(new Uint32Array(canvas.getContext("2d").getImageData(
        0, 0, canvas.width, canvas.height).data.buffer)).size > 1"""
    canvas = page.locator(".ckv-map-base").first.element_handle()
    page.wait_for_function(more_than_a_ground, arg=canvas)
    assert page.locator(".ckv-chart .main-svg").count() >= 8
    chart = page.locator(".ckv-chart", has=page.locator("select[name=variant]")).first
    title = chart.locator(".ckv-chart-title")
    expect(title).to_contain_text("critical", ignore_case=True)
    chart.locator("select[name=variant]").select_option(index=1)
    expect(title).not_to_contain_text("critical", ignore_case=True)
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("window.bumped || 0") == 0
    assert page.locator(INJECTED).count() == 0
    for place in ("h1", "#summary tbody", "#answers .ckv-wrote", ".ckv-tokens", "#run dl"):
        shown = page.locator(place).first
        expect(shown).to_contain_text("</script><img src=x onerror=", use_inner_text=True)
    assert "</script><img src=x" in page.title()


def test_on_a_dark_phone_keys_and_addresses_reach_tokens_and_sections(visit):
    page = visit("plain", 390, "dark").page
    see(page, page.locator("[data-component=kept-tokens]"))
    page.locator(".ckv-map-top").first.wait_for()
    expect(page.locator(".ckv-tokens")).to_contain_text("t0 t1 t2")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.body.classList.contains('dark')")
    page.locator(".ckv-map-top").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    evidence = page.locator(".ckv-evidence")
    expect(evidence).to_contain_text("Its token has")
    assert "span=" in page.url
    page.evaluate("location.hash = '#span=3-3&variant=2&layer=1'")
    expect(evidence.locator("[aria-selected=true]")).to_have_attribute("data-variant", "2")
    page.get_by_text("More views").click()
    expect(page.get_by_label("Layer of the heads map")).to_have_value("1")
    page.get_by_role("navigation").get_by_text("Settings").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Settings")).to_be_focused()


def test_no_serious_accessibility_rule_is_broken(visit):
    page = visit("plain", 1280, "dark").page
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []


def test_a_sweep_shows_its_curves_and_points(visit):
    page = visit("sweep").page
    expect(page.locator("#points tbody tr").first).to_be_visible()
    see(page, page.locator("#curves .ckv-chart"))


def test_the_policy_stops_what_would_slip_through(browser, files, faults):
    """Were markup of a run ever put on the page, its handlers still could not run or fetch."""
    faults.expect("Content Security Policy", "csp ", "https://example.com")
    page = browser.new_context(offline=True).new_page()
    page.goto(files["plain"].as_uri())
    page.wait_for_selector("body[data-drawn]")
    listen = "addEventListener('securitypolicyviolation', (e) => blocked.add(e.effectiveDirective))"
    page.evaluate(f"window.blocked = new Set(); {listen}")
    page.evaluate(
        "code => { document.body.insertAdjacentHTML('beforeend', `<img src=x onerror='${code}'>`);"
        "const node = document.createElement('script'); node.textContent = code;"
        "document.body.append(node); }",
        BUMP,
    )
    # The page's own fetch asks nobody.
    page.evaluate("const x = new XMLHttpRequest(); x.open('GET', 'https://example.com'); x.send()")
    wanted = ["script-src-attr", "script-src-elem", "connect-src"]
    page.wait_for_function("wanted => wanted.every((each) => blocked.has(each))", arg=wanted)
    assert page.evaluate("window.bumped || 0") == 0
    page.context.close()
