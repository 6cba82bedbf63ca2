"""The HTML report in a real browser, opened from disk without a network."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from storage.records import RunNotes
from tests.factories.app import sweep_snapshot
from tests.ui.report_reading import BUMP, HOSTILE, hostile_run, run
from ui.report import charts as report_charts
from ui.report.report import build_report

INJECTED = (
    "img, svg[onload], iframe, a[href^='javascript'], body > script:not([data-file]) ~ script"
)


@dataclass
class Visit:
    """One open report, and what it did that it must not do."""

    page: Page
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """Reports on disk."""
    folder = tmp_path_factory.mktemp("reports")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_charts, "FIGURES_PER_CHART", 2)
        runs = {"plain": run(), "hostile": hostile_run(), "sweep": sweep_snapshot()}
        for name, snapshot in runs.items():
            notes = RunNotes(HOSTILE, (HOSTILE,)) if name == "hostile" else None
            found[name] = folder / f"{name}.html"
            found[name].write_bytes(build_report(snapshot, notes))
    return found


@pytest.fixture(scope="module")
def visit(browser, files) -> Iterator[Callable[..., Visit]]:
    """Open a report, once; in the end none may have asked for anything or failed anywhere."""
    visits: dict[tuple[str, int], Visit] = {}

    def opener(name: str, width: int = 1280, theme: str = "light") -> Visit:
        if (name, width) in visits:
            return visits[name, width]
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=theme,
            offline=True,
            bypass_csp=theme == "dark",  # there axe is run, which is a script too
        )
        visit = Visit(context.new_page())
        visit.page.on("request", lambda request: visit.requests.append(request.url))
        visit.page.on("pageerror", lambda error: visit.errors.append(str(error)))
        visit.page.on("console", lambda m: m.type == "error" and visit.errors.append(m.text))
        visit.page.goto(files[name].as_uri())
        visit.page.wait_for_selector("body[data-drawn]")
        visits[name, width] = visit
        return visit

    yield opener
    for each in visits.values():
        asked = [url for url in each.requests if not url.startswith(("data:", "blob:"))]
        each.page.context.close()
        assert len(asked) == 1, asked
        assert asked[0].startswith("file://")
        assert each.errors == []


def see(page: Page, parts: Locator) -> None:
    """Scroll until these have been drawn: maps, strips and charts."""
    for part in parts.all():
        part.scroll_into_view_if_needed()
    for chart in parts.and_(page.locator(".ckv-chart")).all():
        chart.locator(".main-svg").first.wait_for()


def test_all_works_without_a_network_and_hostile_text_is_shown_and_never_runs(visit):
    page = visit("hostile").page
    see(page, page.locator("[data-component=kept-tokens], .ckv-strip:visible, .ckv-chart"))
    page.wait_for_selector(".ckv-host[data-state=shown]")
    expect(page.locator(".ckv-map-base"), "two variants, difference, heads").to_have_count(4)
    more_than_3_colours = """canvas => new Set(new Uint32Array(canvas.getContext("2d").getImageData(
        0, 0, canvas.width, canvas.height).data.buffer)).size > 3"""
    canvas = page.locator(".ckv-map-base").first.element_handle()
    page.wait_for_function(more_than_3_colours, arg=canvas)
    expect(page.locator(".ckv-strip-cells").nth(1).locator(".ckv-cell")).to_have_count(2)
    assert page.locator(".ckv-chart .main-svg").count() >= 8
    chart = page.locator(".ckv-chart", has=page.locator("select[name=variant]")).first
    title = chart.locator(".gtitle")
    expect(title).to_contain_text("critical", ignore_case=True)
    chart.locator("select[name=variant]").select_option(index=1)
    expect(title).not_to_contain_text("critical", ignore_case=True)
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("window.bumped || 0") == 0
    assert page.locator(INJECTED).count() == 0
    for place in ("h1", "#summary tbody", "#generations .ckv-text", ".ckv-tokens", "#run dl"):
        shown = page.locator(place).first
        expect(shown).to_contain_text("</script><img src=x onerror=", use_inner_text=True)
    assert "</script><img src=x" in page.title()


def test_on_a_dark_phone_keys_and_addresses_reach_tokens_and_definitions(visit):
    page = visit("plain", 390, "dark").page
    see(page, page.locator("[data-component=kept-tokens]"))
    page.locator(".ckv-map-top").first.wait_for()
    expect(page.locator(".ckv-tokens")).to_contain_text("t0 t1 t2")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.body.classList.contains('dark')")
    page.locator(".ckv-map-top").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    panel = page.locator(".ckv-token-panel")
    expect(panel).to_contain_text("layer 0 framed")
    expect(page.locator(".ckv-slots canvas")).to_have_count(2)
    assert "#token=" in page.url
    page.evaluate("location.hash = '#token=3&variant=2&layer=1'")
    expect(panel).to_contain_text("token 3, layer 1 framed")
    page.locator("#definitions summary").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#definitions table").first).to_be_visible()


def test_no_serious_accessibility_rule_is_broken(visit):
    page = visit("plain", 390, "dark").page
    page.set_viewport_size({"width": 1280, "height": 720})
    page.locator("#definitions details").evaluate_all("all => all.forEach(e => { e.open = true })")
    found = Axe().run(page).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []


def test_a_sweep_shows_its_curves_and_points(visit):
    page = visit("sweep").page
    expect(page.locator("#points tbody tr").first).to_be_visible()
    curves = page.locator("#curves .ckv-chart")
    assert curves.count() >= 4
    see(page, curves.nth(0).or_(curves.nth(1)))


def test_the_policy_stops_what_would_slip_through(browser, files):
    """Were markup of a run ever put on the page, its handlers still could not run or fetch."""
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
