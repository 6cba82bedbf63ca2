"""Runs of many samples in a real browser: made, followed, stopped, read, on a phone and in dark."""

import dataclasses
import json
import re

import pytest
from playwright.sync_api import Page, expect

from ckv_core.records.run_request import RunRequest
from tests.e2e.steps import PHONE, expect_well_made, expect_well_made_everywhere, see_everything
from tests.factories.app import STUDY, store_study
from tests.ui.served_app import Served

THEIRS = {"passage": "one two three four five six seven eight nine ten", "question": "When?"}
LINE = {"context": "one two three four five six seven eight nine ten", "question": "When?"}
JSONL = "\n".join(json.dumps({"id": f"q{at}", **THEIRS, "answers": ["nine"]}) for at in range(3))


@pytest.fixture(scope="module")
def app(open_app) -> Served:
    return open_app


@pytest.fixture(scope="module")
def slug(app) -> str:
    """A study that is done, which most tests only read."""
    return store_study(app.services)


@pytest.fixture(autouse=True)
def phone(page) -> None:
    """How wide the page is at first."""
    page.set_viewport_size(PHONE)


def draw_charts(page: Page) -> None:
    for chart in page.locator("[data-chart]:visible").all():
        chart.scroll_into_view_if_needed()
        expect(chart.locator(".main-svg").first).to_be_visible()


def test_a_study_is_well_made_and_its_map_and_scores_lead_to_their_samples(page, app, slug):
    page.goto(f"{app.url}/run?id={slug}&__theme=light")
    samples = page.locator("#study-samples tbody tr")
    samples.first.wait_for()
    # On a phone each row is a few lines, and the decision comes before anything else.
    expect(page.locator("#study-scores thead")).to_be_hidden()
    expect(page.locator("#verdict p").first).to_contain_text("Cannot tell yet: SnapKV at 50 %")
    see_everything(page)
    draw_charts(page)
    expect_well_made_everywhere(page)
    page.get_by_role("button", name="All figures and charts").click()
    page.locator("#study-tasks tbody tr").first.wait_for()
    draw_charts(page)
    expect_well_made(page)

    # A cell of the map by keyboard.
    chart = page.locator('[data-chart="needles"]')
    chart.scroll_into_view_if_needed()
    chart.locator("summary").focus()
    page.keyboard.press("Enter")
    chart.get_by_role("button", name="As a table").press("Enter")
    chart.locator("tbody a").first.press("Enter")
    expect(page.locator("#study-cell")).to_contain_text("Only the samples of")

    # A score, from there on; a sample opens as a result of its own, and the same one again.
    page.locator("#study-scores tbody tr", has_text="KeyDiff").locator("a").last.click()
    expect(page.locator("#study-cell")).to_contain_text("Only the samples of KeyDiff at 50 %")
    expect(samples).to_have_count(40)
    expect(page.locator("#study-samples")).to_be_in_viewport()
    opened = []
    for _ in range(2):
        page.locator("#study-samples a").first.click()
        page.wait_for_url(lambda url: f"id={slug}" not in url)
        expect(page.locator("#answers tbody tr").first).to_be_visible()
        opened.append(page.url)
        page.go_back()
        samples.first.wait_for()
    assert opened[0] == opened[1]
    page.get_by_role("link", name="Where methods disagree", exact=True).click()
    expect(samples).to_have_count(8)
    page.get_by_role("button", name="Show all").click()
    assert samples.count() > 8


def test_a_pasted_file_is_shown_priced_run_and_read(page, app, slug):
    page.goto(f"{app.url}/studies?__theme=light")
    page.wait_for_url("**/?__theme=light&source=pasted")
    page.locator("#study-name :is(input, textarea)").fill("pasted")
    data = page.locator("#study-data textarea")
    expect(page.locator("#study-file button")).to_be_visible()  # which is what takes a drop
    # Dropped as a file; its context has another name, which is chosen.
    data.evaluate(
        """(box, text) => {
          const files = new DataTransfer();
          files.items.add(new File([text], "mine.jsonl"));
          box.dispatchEvent(new DragEvent("drop", { bubbles: true, dataTransfer: files }));
        }""",
        JSONL,
    )
    expect(data).to_have_value(JSONL)
    expect(page.locator("#study-map")).to_contain_text("Not read: passage.")
    page.locator("#study-map select[name=context]").select_option("passage")
    expect(page.locator("#study-map")).to_contain_text("3 samples.")
    budget = page.locator("#budget :is(input, textarea)")
    budget.fill("50%")
    budget.blur()
    expect(page.locator("#study-plan")).to_contain_text("3 samples can confirm")
    expect(page.locator("#study-cost")).to_contain_text(re.compile(r"3 samples, \d+ results each"))
    expect(page.locator("#context").filter(visible=True)).to_have_count(0)
    expect_well_made_everywhere(page)
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_url("**/run?id=*")
    expect(page.locator("#verdict [data-state=done]")).to_be_visible()
    expect(page.locator("#study-decision tbody tr").first).to_be_visible()
    page.goto(f"{app.url}/runs?kind=samples")
    row = page.locator("#runs tbody tr", has_text="pasted")
    expect(row).to_contain_text("many samples")
    expect(row).to_contain_text("Cannot tell yet")
    row.get_by_role("link", name="pasted").click()
    page.wait_for_url("**/run?id=*")
    # Its form again, to which samples are added.
    page.get_by_role("link", name=re.compile("^Add ")).click()
    expect(page.locator("#notice")).to_contain_text("The settings of pasted are filled in")
    expect(page.locator("#study-name :is(input, textarea)")).to_have_value("pasted")
    expect(data).to_have_value(re.compile('"q0"'))


def test_a_stopped_study_goes_on_by_a_button_and_an_unknown_one_is_told(page, app):
    study = dataclasses.replace(STUDY, name="half", model="tiny")
    slug = store_study(app.services, study, done=38)
    page.goto(f"{app.url}/run?id={slug}")
    expect(page.locator("#verdict [data-state=unfinished]")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#verdict [data-state=done]")).to_be_visible()
    with app.client() as client:
        for unknown in ("nothere00000", "%22%3Cb%3E"):
            assert client.get(f"/run?id={unknown}").status_code == 404


def test_the_report_opens_without_the_app(page, app, slug, tmp_path):
    file = tmp_path / "report.html"
    with app.client() as client:
        file.write_bytes(client.get(f"/studies/{slug}/report.html").content)
    page.goto(file.as_uri())
    expect(page.locator("h1")).to_have_text(STUDY.name)
    expect(page.locator("#decision tbody tr")).to_have_count(3)
    expect(page.locator("#figures tbody tr")).to_have_count(7)
    expect(page.locator("#samples tbody tr")).to_have_count(8)
    expect(page.locator("main a[href^='/']:visible")).to_have_count(0)
    draw_charts(page)
    expect_well_made(page)


def test_chosen_runs_fill_the_samples(page, app):
    texts = {"context": LINE["context"], "question": "When?", "answer": "nine"}
    slug = app.services.start_run(RunRequest(**texts, model="tiny"))
    page.goto(f"{app.url}/?runs={slug}")
    expect(page.locator("#study-runs :is(input, textarea)")).to_have_value(slug)
    expect(page.locator("#study-plan")).to_contain_text("1 sample can confirm")
    expect(page.locator("#notice")).to_contain_text("Filled in as samples: the texts of 1 stored")
    page.goto(f"{app.url}/?runs=nothere00000")
    expect(page.locator("#notice")).to_contain_text("There is no run")


def test_the_files_are_served_and_only_of_studies_that_are_there(app, slug):
    with app.client() as client:
        whole = client.get(f"/studies/{slug}/study.json").json()
        assert (whole["study"]["name"], len(whole["table"])) == (STUDY.name, 7)
        assert "variants:" in client.get(f"/studies/{slug}/study.yaml").text
        log = client.get(f"/studies/{slug}/inspect.json").json()
        assert (log["version"], len(log["samples"])) == (2, 40)
        assert "Content-Security-Policy" in client.get(f"/studies/{slug}/report.html").text
        for name in ("scores", "results"):
            assert client.get(f"/studies/{slug}/{name}.csv").status_code == 200
        assert client.get(f"/studies/{slug}/figure/budget").json()["data"]
        for path in ("figure/none", "../study.json"):
            assert client.get(f"/studies/{slug}/{path}").status_code == 404
        assert client.get("/studies/nothere00000/study.json").status_code == 404
