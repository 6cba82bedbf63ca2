"""The browser's Back, Forward and Reload lose nothing: form, run and choice of runs."""

import dataclasses

import pytest
from playwright.sync_api import Page, expect

from tests.e2e import steps
from tests.factories.app import ENDLESS, request, script, store_run
from tests.factories.runs import done_result
from tests.ui.served_app import Served

pytestmark = pytest.mark.e2e

# Long enough that the form's budget of it holds the window, where a model is there to count it.
TEXT = "Ships came and went, and the weather was fair. " * 40


@pytest.fixture(scope="module")
def app(open_app) -> Served:
    return open_app


NOTHING_KEPT = "void (Storage.prototype.setItem = () => { throw new Error('full') })"


def open_form(page: Page, url: str) -> None:
    """Wait until the form listens: what is typed and clicked before is lost."""
    page.goto(url)
    page.locator("#context-bar [data-ready]").wait_for(state="attached")


def reload_often(page: Page) -> None:
    """Again before all has come; the fixture `page` finds what is logged of it."""
    for _ in range(3):
        page.locator("#verdict [data-state]").wait_for()
        page.reload(wait_until="commit")


def test_back_after_a_run_of_a_text_too_long_to_be_kept_fills_the_form_which_asks_when_it_is_left(
    app, page, monkeypatch
):
    slug = store_run(app.services, request(context="of the run"), done_result())
    monkeypatch.setattr(app.services, "start_run", lambda *_: slug)
    open_form(page, app.url)
    page.evaluate(NOTHING_KEPT)
    page.locator("#context textarea").fill("a long text " * 100)
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_url(f"**/run?id={slug}")  # nobody is asked before the form is left
    page.go_back()
    page.wait_for_url(f"**/?from={slug}")
    expect(page.locator("#context textarea")).to_have_value("of the run")
    page.locator("#context-bar [data-ready]").wait_for(state="attached")
    dialogs: list[str] = []
    page.on("dialog", lambda each: dialogs.append(each.type) or each.accept())
    page.evaluate(NOTHING_KEPT)
    page.evaluate("addEventListener('beforeunload', () => (sessionStorage.heard = 'yes'))")
    page.locator("#question textarea").press_sequentially("why?")
    page.get_by_label("Pages").get_by_role("link", name="Methods").click()
    page.wait_for_url("**/methods")
    assert dialogs == ["beforeunload"]
    assert page.evaluate("sessionStorage.heard") == "yes"  # Gradio's listener alone is left out


def wait_until_kept(page: Page, words: str) -> None:
    """A busy browser takes a while to hand the typed values over; a person's hand takes longer."""
    kept = "words => Object.values(sessionStorage).some((each) => each.includes(words))"
    page.wait_for_function(kept, arg=words)


def test_what_was_typed_is_there_after_a_reload_and_back_and_new_clears_it(app, page):
    open_form(page, app.url)
    context, question = page.locator("#context textarea"), page.locator("#question textarea")
    chosen = page.locator(f"#variants {steps.CHIP}")
    steps.open_advanced(page)
    page.get_by_label("Context-only", exact=True).check()
    page.locator("#budget input").fill("no budget")
    page.locator("#model input").first.fill("some/model")
    page.locator("#model input").first.press("Enter")
    steps.tick(page, "#variants", ("KeyDiff",))
    context.fill(TEXT)
    question.fill("And the weather?")

    def expect_typed() -> None:
        expect(question).to_have_value("And the weather?")
        expect(context).to_have_value(TEXT)
        expect(page.locator("#budget input")).to_have_value("no budget")
        expect(page.locator("#model input").first).to_have_value("some/model")
        steps.open_advanced(page)
        expect(page.get_by_label("Context-only", exact=True)).to_be_checked()
        expect(chosen).to_have_text(["KeyDiff"])
        expect(page.locator("#budget .ckv-wrong")).to_contain_text("Budget")

    wait_until_kept(page, "And the weather?")
    page.reload()
    expect_typed()
    page.get_by_label("Pages").get_by_role("link", name="Methods").click()
    page.wait_for_url("**/methods")
    page.go_back()
    expect_typed()
    slug = store_run(app.services, request(context="of a run"), done_result())
    open_form(page, f"{app.url}/?from={slug}")
    expect(context).to_have_value("of a run")  # what the address names comes first
    page.get_by_label("Pages").get_by_role("link", name="Compare").click()
    expect_typed()
    with page.expect_navigation():
        page.get_by_role("button", name="New", exact=True).click()
    for _ in range(2):
        # The fields are empty too before they are filled from what is kept.
        assert "weather" not in page.evaluate("JSON.stringify(sessionStorage)")
        expect(chosen).not_to_have_text(["KeyDiff"])
        expect(context).to_have_value("")
        page.reload()


@pytest.mark.parametrize(
    ("path", "choice", "field"),
    [
        ("?source=pasted", "Built-in task", "#field-length input"),
        ("caches", "", "#cache-question textarea"),
    ],
)
def test_other_forms_keep_what_was_typed_too(app, page, path, choice, field):
    page.goto(f"{app.url}/{path}")
    page.locator("[data-ready]").first.wait_for(state="attached")  # what is typed before is lost
    if choice:
        page.get_by_label(choice).check()
    page.locator(field).fill("12, 34")
    wait_until_kept(page, "12, 34")
    page.reload()
    expect(page.locator(field)).to_have_value("12, 34")


def test_nobody_finds_what_another_user_typed(team_app, page):
    steps.log_in(page, team_app.url, "ann")
    page.locator("#context-bar [data-ready]").wait_for()
    page.locator("#context textarea").fill("of ann")
    page.locator("#question textarea").fill("of ann, too")
    wait_until_kept(page, "of ann, too")
    page.reload()
    expect(page.locator("#question textarea")).to_have_value("of ann, too")
    expect(page.locator("#context-bar")).to_contain_text("tokens")  # no event is on its way
    page.get_by_role("button", name="Log out", exact=True).click()
    expect(page).to_have_url(f"{team_app.url}/login")
    page.wait_for_function("sessionStorage.length === 0")  # the page's script may still come
    page.evaluate("sessionStorage.setItem('ckv-draft-left', '{}')")
    steps.log_in(page, team_app.url, "bob")
    page.locator("#context-bar [data-ready]").wait_for()
    expect(page.locator("#context textarea")).to_have_value("")


def test_back_to_the_list_finds_the_same_runs_chosen(app, page):
    for context in ("one", "two", "three"):
        result = done_result()
        tokens = tuple(ord(letter) for letter in context.ljust(10))
        result.prompt = dataclasses.replace(result.prompt, token_ids=tokens)
        store_run(app.services, request(context=context), result)
    page.goto(f"{app.url}/runs")
    boxes = page.locator("#runs input[data-slug]")
    slugs = [boxes.nth(at).get_attribute("data-slug") for at in (0, 2)]
    for slug in slugs:
        page.locator(f"#runs input[data-slug='{slug}']").check()
    chosen = page.get_by_role("group", name="Chosen runs")
    chosen.get_by_role("link", name="Side by side").click()
    page.wait_for_url("**/several?ids=*")
    page.go_back()
    expect(chosen).to_contain_text("2 runs selected")
    for slug in slugs:
        expect(page.locator(f"#runs input[data-slug='{slug}']")).to_be_checked()


def test_a_reload_attaches_again_and_a_second_tab_sees_the_same_run(app, page, context):
    slug = app.services.start_run(script(ENDLESS))
    page.goto(f"{app.url}/run?id={slug}")
    expect(steps.generated(page, "Full cache")).to_contain_text("w1")
    reload_often(page)
    steps.expect_state(page, "running")
    expect(steps.generated(page, "Full cache")).not_to_have_text("")
    before = steps.generated(page, "Full cache").inner_text()
    with context.new_page() as second:
        second.goto(f"{app.url}/r/{slug}")
        assert second.url == f"{app.url}/run?id={slug}"
        steps.expect_state(second, "running")
        expect(steps.generated(second, "Full cache")).to_contain_text("w1")
        expect(steps.generated(page, "Full cache")).not_to_have_text(before)
        second.get_by_role("button", name="Cancel", exact=True).click()
        steps.expect_state(page, "cancelled")
        steps.expect_state(second, "cancelled")
    expect(page.locator("#verdict")).to_contain_text("Cancelled on request")
    assert steps.generated(page, "Full cache").inner_text()
