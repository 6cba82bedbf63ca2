"""The head of each page: its title, and a 404 for a run that is not there."""

import dataclasses
import html
import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.steps import PHONE, expect_well_made_everywhere, open_sections, see_everything
from tests.factories.app import STUDY, request, store_run, sweep_snapshot
from tests.factories.runs import analysed, done_result, mixed, sweep_result, with_changes
from ui.shell.header import PAGES

SECRET = 'Who </title><script>alert("x")</script> hides?'


@pytest.fixture(scope="module")
def slug(app) -> str:
    return store_run(app.services, request(question=SECRET), done_result(), owner="ann")


def titles(client: httpx.Client, path: str) -> list[str]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert "og:" not in answer.text
    return re.findall(r"<title>(.*?)</title>", answer.text, re.DOTALL)


def test_every_page_has_one_title_of_its_own_and_a_runs_stays_text(app, slug):
    with app.client("ann") as client:
        for page, title in PAGES.items():
            assert titles(client, page) == [f"{title} - CriticalKV Lab"]
        assert titles(client, f"/run?id={slug}") == [f"{html.escape(SECRET)} - CriticalKV Lab"]


def test_a_page_fetches_all_its_modules_at_once(app):
    with app.client("ann") as ann:
        page = ann.get("/", headers={"accept": "text/html"}).text
        preloaded = re.findall(r'<link rel="modulepreload" href="([^"]+)">', page)
        found = "".join(ann.get(each).raise_for_status().text for each in preloaded)
    names = {each.rpartition("/")[2] for each in preloaded}
    assert {"method_chips.js", "chip_menu.js", "dom.js"} <= names
    assert "answers.js" not in names  # of another page
    assert {each.rpartition("/")[2] for each in re.findall(r'from "(.+)";', found)} <= names


@pytest.mark.parametrize("address", ["/run", "/run?id=nope", "/run?id=zzz999zzz999"])
def test_a_run_that_is_not_there_is_not_found(app, address):
    with app.client("bob") as client:
        answer = client.get(address, headers={"Accept": "text/html"})
        assert answer.status_code == client.head(address).status_code == 404
    assert "There is no run of this name" in answer.text
    assert re.search(r'<a href="/runs"', answer.text)


def test_somebody_elses_run_is_not_found_either(app, slug):
    with app.client("bob") as client:
        assert client.get(f"/run?id={slug}").status_code == 404


def test_a_run_of_many_samples_has_the_page_of_all_runs(app):
    study = app.services.studies._store.save(STUDY, (), "ann")
    with app.client("ann") as client:
        answer = client.get(f"/study?id={study}&budget=10%25", follow_redirects=False)
        assert answer.status_code == 308
        assert answer.headers["location"].endswith(f"/run?id={study}&budget=10%25")
        assert titles(client, f"/run?id={study}") == [f"{html.escape(STUDY.name)} - CriticalKV Lab"]
    with app.client("bob") as client:
        assert client.get(f"/run?id={study}").status_code == 404


# --- axe-core finds nothing on any page, light and narrow or dark and wide -----------------

# Their runs hold both regimes, which no table and no chart passes over.
MIXED = ("sweep", "several", "few", "diagnostics")


@pytest.fixture(scope="module")
def pages(open_app) -> Iterator[dict[str, str]]:
    """Addresses by name; clicking Run on the Compare page shows a stored sweep."""
    slugs = []
    for at in range(2):
        result = mixed(sweep_result(better=0.4 + 0.05 * at, generated=True))
        # Two of the budgets have every mark and every row of the others.
        result.variants = [v for v in result.variants if v.params.get("budget", 64) <= 128]
        result.prompt = dataclasses.replace(result.prompt, token_ids=tuple(range(at, at + 10)))
        slugs.append(store_run(open_app.services, sweep_snapshot().request, result))
    diagnostics = mixed(analysed())
    asked = dataclasses.replace(
        sweep_snapshot().request,
        **dict.fromkeys(("budgets", "alphas", "places"), ()),
        variants=tuple(v.spec for v in diagnostics.variants),
        analysis=("bounds", "forced"),
    )
    other = {"agreement": 0.25, "token_ids": (1, 9), "token_texts": ("one", " <b>x</b>")}
    changed = with_changes(diagnostics, lambda each: dataclasses.replace(each, **other))
    compared = [store_run(open_app.services, asked, each) for each in (diagnostics, changed)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_app.services, "start_run", lambda *_: slugs[0])
        yield {
            **{name: f"{open_app.url}/{name}" for name in ("", "runs")},
            "sweep": open_app.url,
            "several": f"{open_app.url}/several?ids={','.join(slugs)}",
            "few": f"{open_app.url}/several?ids={','.join(compared)}",
            "diagnostics": f"{open_app.url}/run?id={compared[0]}",
        }


def open_all(page: Page) -> None:
    """The closed sections of a result, on a phone behind the last tab."""
    page.get_by_role("tab", name="More").click()
    for line in page.locator(".ckv-fold-line:visible").all():
        line.press("Enter")


def show(page: Page, name: str) -> None:
    """Wait for what the page is about, and for all of its charts."""
    if name == "sweep":
        page.locator("#context textarea").fill("some words here. " * 40)
        page.locator("#budget input").fill("64, 128")
        page.get_by_role("button", name="Run", exact=True).click()
    if name == "":
        page.get_by_role("button", name="Advanced").click()
    marks = {
        "sweep": "#grid .ckv-point",
        "several": "#several-table tbody tr",
        "few": "#several-beside tbody tr",
        "diagnostics": "#diagnostics [data-chart=tightness]",
    }
    page.locator(marks.get(name, "header.ckv-header")).first.wait_for(state="attached")
    if name == "diagnostics":
        open_all(page)
    if name == "sweep":
        open_sections(page)
    if name == "few":  # the budget is equal, so it is shown on demand
        budget = page.locator("#several-beside tr", has_text="Budgets")
        expect(budget).to_be_hidden()
        page.get_by_role("button", name="Everything").click()
        expect(budget).to_be_visible()
    see_everything(page)
    for chart in page.locator("[data-chart]").all():
        chart.scroll_into_view_if_needed()
        expect(chart.locator(".main-svg").first).to_be_visible()


@pytest.mark.parametrize("name", ["", "runs", "sweep", "several", "few", "diagnostics"])
def test_axe_finds_nothing_and_nothing_scrolls_sideways(context, pages, name):
    page = context.new_page()
    page.set_viewport_size(PHONE)
    address = pages[name]
    page.goto(f"{address}{'&' if '?' in address else '?'}__theme=light")
    show(page, name)
    if name == "few":
        expect(page.locator("#several-beside mark").first).to_have_text(" <b>x</b>")
    if name in MIXED:
        heads = page.locator(".ckv-regimes:visible").all_inner_texts()
        assert heads
        assert len(heads) == 1 or name in ("several", "few"), (
            "what came out says it for the whole page"
        )
        assert all(text.startswith("Query-aware methods ") for text in heads)
        regimes = {*page.locator(".ckv-regime:visible").all_inner_texts()}
        assert regimes == {"query-aware", "query-agnostic"}
    expect_well_made_everywhere(page)
    page.close()
