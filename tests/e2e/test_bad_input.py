"""Each mistake gets one clear sentence, and what was typed stays."""

import json
import sys
from contextlib import ExitStack, closing

import pytest
from playwright.sync_api import Route, expect

from app import main
from ckv_core.base import logs
from ckv_core.records.run_request import DEFAULT_MODEL
from ckv_core.worker.messages import ModelStatus
from storage.database import default_url, open_database
from storage.servers import only_server
from tests.e2e import steps
from tests.factories.app import ENDLESS, script, states_of
from tests.factories.documents import pdf
from tests.processes import free_port

CONTEXT = "#context textarea"


# What is typed where, the block beside whose field the error stands, and words of it.
HALF = "good \ud800 text"
WRONG = [
    (CONTEXT, " ", "context", "The text is empty"),
    (CONTEXT, HALF, "context", "lone surrogate) at position 5"),
    (CONTEXT, "w " * 9_000, "context", "over the model's limit of 8,192"),
    ("#protect textarea", "nowhere", "protect", "does not occur in the"),
    ("#budget input", "1", "budget", "raise the budget to at least"),
    ("#variants", "x", "variants", "window must be"),
]
PUT = """(box, text) => {
  box.value = JSON.parse(text);
  box.dispatchEvent(new Event("input", {bubbles: true}));
}"""


# Notes whether any field is ever marked.
WATCH = """() => new MutationObserver(() => {
  window.wrong ||= document.querySelector("#wrong-protect") !== null;
}).observe(document.body, {childList: true, subtree: true})"""


def put(page, field, text):
    """Type it and leave the field; of the methods it is SnapKV's window."""
    box = page.locator(field)
    if field == "#variants":
        box.locator(steps.CHIP).first.click()
        menu = box.locator("details[open] > .ckv-pop")
        expect(menu.get_by_role("switch")).to_be_visible()
        if not menu.get_by_label("window").is_visible():
            menu.locator("summary", has_text="Parameters").click()
        menu.get_by_label("window").fill(text)
        menu.get_by_label("window").press("Enter")
        page.keyboard.press("Escape")
    elif text == HALF:  # no key types it
        box.evaluate(PUT, json.dumps(text))
    else:
        box.fill(text)
        box.blur()


def test_a_refusal_that_comes_after_the_field_was_mended_is_not_shown(page):
    steps.fill(page)
    steps.open_advanced(page)
    put(page, "#protect textarea", "nowhere")  # which only Run refuses
    held: list[Route] = []
    # Playwright asks a handler for its arguments, which `append` does not list.
    page.route("**/queue/join*", lambda route: held.append(route))  # noqa: PLW0108
    with page.expect_request("**/queue/join*"):
        steps.run(page)
    put(page, "#protect textarea", "")
    page.evaluate(WATCH)
    with page.expect_response("**/queue/join*"):
        for each in held:
            each.continue_()
    page.unroute("**/queue/join*")
    page.wait_for_timeout(1_500)  # the refusal comes in far less
    assert not page.evaluate("window.wrong")
    expect(page.locator("#notice")).to_have_text("")


def test_run_waits_for_what_fills_the_form_in_and_not_for_what_failed(page, app, faults):
    form, fill = page.locator("#ask"), "**/run/predict*"

    def press_run_before_the_fill() -> str:
        expect(form).to_have_attribute("aria-busy", "true")
        for _ in range(2):
            steps.run(page)
        page.unroute(fill)  # which lets go what is held
        return steps.wait_for_slug(page)

    faults.expect("500")
    expect(form).to_have_attribute("aria-busy", "false")  # once the page has filled it
    page.route(fill, lambda route: route.fulfill(status=500))
    with page.expect_response(fill):
        page.get_by_role("button", name="Support chat").click()
    expect(form).to_have_attribute("aria-busy", "false")
    page.unroute(fill)
    steps.run(page)
    expect(page.locator("#wrong-context")).to_contain_text("The text is empty")

    page.route(fill, lambda _: None)
    page.get_by_role("button", name="Support chat").click()
    slug = press_run_before_the_fill()
    first = app.services.snapshot(slug).request
    assert "euros" in first.context
    page.route(fill, lambda _: None)
    steps.open_form(page, f"{app.url}/?from={slug}")
    again = press_run_before_the_fill()
    assert again != slug
    assert app.services.snapshot(again).request == first


def test_an_error_stands_once_on_the_page_beside_its_field(page, app):
    app.services.warm(DEFAULT_MODEL)  # else Run counts no tokens
    steps.fill(page)
    steps.open_advanced(page)
    expect(page.locator("#model-line")).to_contain_text("Ready")
    before = states_of(app.services)
    for field, text, block, words in WRONG:
        right = "" if field == "#variants" else page.locator(field).input_value()
        put(page, field, text)
        beside = page.locator(f"#wrong-{block}")
        for _ in range(2 if text == " " else 1):  # the second time the sentence is the same
            steps.run(page)
            expect(beside).to_contain_text(words)
            expect(beside).to_be_in_viewport()
            expect(page.get_by_text(words).filter(visible=True)).to_have_count(1)
            page.evaluate("scrollTo(0, document.body.scrollHeight)")
        # A group of chips is not invalid: most of them are right.
        wrong = "[role=group]" if field == "#variants" else "[aria-invalid=true]"
        expect(page.locator(f"#{block} {wrong}[aria-describedby~=wrong-{block}]")).to_be_visible()
        if block == "protect":
            steps.expect_well_made(page)
        put(page, field, right)
        expect(beside).to_have_count(0)
        expect(page.get_by_text(words).filter(visible=True)).to_have_count(0)
        expect(page.locator(f"#{block} [aria-invalid=true]")).to_have_count(0)
    assert states_of(app.services) == before


def test_an_error_stands_in_the_line_where_its_field_is_folded_away_until_run_opens_it(page):
    steps.fill(page)
    steps.open_advanced(page)
    put(page, "#max-new-tokens input", "1.5")
    line, beside = page.locator("#variants-line [role=alert]"), "#max-new-tokens .ckv-wrong"
    expect(page.locator(beside)).to_be_visible()
    expect(line).to_be_hidden()
    steps.open_advanced(page)  # folds it
    expect(line).to_be_visible()
    expect(line).to_contain_text("a whole number")
    steps.run(page)
    expect(page.locator(beside)).to_be_in_viewport()


def test_a_count_that_comes_out_the_same_is_shown(page):
    for text in ("one two", "one three"):
        page.locator(CONTEXT).fill(text)
        expect(page.locator("#context-bar")).to_contain_text("counting")
        expect(page.locator("#context-bar")).to_contain_text("2 of 8,192 tokens")


def test_a_model_that_is_not_there_is_marked_and_no_run_starts(page, app):
    before = states_of(app.services)
    steps.fill(page)
    box, sentence = page.get_by_role("combobox", name="Model"), "No model 'missing' was"
    box.fill("missing")
    box.press("Enter")
    expect(page.locator("#model .ckv-wrong")).to_contain_text(sentence)
    steps.run(page)
    expect(page.locator("#notice")).to_contain_text(sentence)
    expect(page.get_by_text(sentence).filter(visible=True)).to_have_count(1)
    expect(box).to_have_attribute("aria-invalid", "true")
    # No worker that is busy has to say it.
    waiting = app.services.start_run(script(ENDLESS))
    box.fill("nowhere")
    box.press("Enter")
    steps.run(page)
    expect(page.locator("#model .ckv-wrong")).to_contain_text("The model 'nowhere' is unknown")
    # Of the model that was picked before, the line says no more.
    line = page.locator("#model-line")
    expect(line).to_contain_text("nowhere waits")
    box.fill(DEFAULT_MODEL)
    box.press("Enter")
    expect(line).to_contain_text(f"{DEFAULT_MODEL} waits")
    app.services._keep_status(ModelStatus("nowhere", False, "nowhere is lost.", failed=True))
    page.wait_for_timeout(1_500)  # a watch looks twice in a second
    expect(line).to_contain_text(DEFAULT_MODEL)
    app.services.cancel_run(waiting)
    assert sum(states_of(app.services).values()) == sum(before.values()) + 1


def test_text_and_document_files_are_opened_and_no_others(page, tmp_path, faults):
    faults.expect("400")
    files = {
        "latin.txt": ("caf\u00e9".encode("latin-1"), "latin.txt is not UTF-8 text"),
        "zeros.bin": (b"\x00\x01", "zeros.bin is not a text file"),
        "huge.txt": (b"x" * 4_000_001, "the limit is 4,000,000"),
        "wrong.docx": (b"PK", "no whole DOCX file"),
    }
    page.locator(CONTEXT).fill("typed before")
    picker = page.locator("#context-bar input[type=file]")
    for name, (content, sentence) in files.items():
        (tmp_path / name).write_bytes(content)
        picker.set_input_files(tmp_path / name)
        expect(page.locator("#context-bar")).to_contain_text(sentence)
        assert page.locator(CONTEXT).input_value() == "typed before"
    (tmp_path / "good.txt").write_text("na\u00efve caf\u00e9", "utf-8")
    picker.set_input_files(tmp_path / "good.txt")
    expect(page.locator(CONTEXT)).to_have_value("na\u00efve caf\u00e9")
    expect(page.locator("#context-bar")).to_contain_text(" of 8,192 tokens")
    (tmp_path / "good.pdf").write_bytes(pdf(["A page of text", ""]))
    picker.set_input_files(tmp_path / "good.pdf")
    expect(page.locator("#context-bar")).to_contain_text("Page 2 holds no text (a scan).")
    expect(page.locator(CONTEXT)).to_have_value("A page of text")
    # As a file that is dropped.
    page.locator(CONTEXT).evaluate(
        """box => {
          const dataTransfer = new DataTransfer(), bubbles = true;
          dataTransfer.items.add(new File(["dropped"], "code.py"));
          box.dispatchEvent(new DragEvent("drop", { bubbles, dataTransfer }));
        }"""
    )
    expect(page.locator(CONTEXT)).to_have_value("dropped")
    expect(page.locator("#context-bar")).to_contain_text("1 of 8,192 tokens")


# --- a second app where one serves already


@pytest.mark.parametrize("taken", ["data", "port"])
def test_a_second_app_in_the_same_place_is_one_sentence(app, tmp_path, monkeypatch, capsys, taken):
    port = app.url.rpartition(":")[2]
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.setenv("CKV_HOME", str(tmp_path))
    monkeypatch.setenv("CKV_PORT", str(free_port()) if taken == "data" else port)
    monkeypatch.setattr(sys, "argv", ["app.py"])
    with closing(open_database(default_url(tmp_path))) as database, ExitStack() as stack:
        if taken == "data":
            stack.enter_context(only_server(database))
        assert main() == 1
    told = {
        "data": "Another CriticalKV Lab serves",
        "port": f"Port {port} on 127.0.0.1 cannot be used",
    }
    (line,) = capsys.readouterr().err.splitlines()
    assert told[taken] in line
