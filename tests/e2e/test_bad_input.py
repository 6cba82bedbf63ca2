"""Each mistake gets one clear sentence, and what was typed stays."""

import re
import sys
from contextlib import ExitStack, closing

import pytest
from playwright.sync_api import expect

from app import main
from ckv_core.runtime import logs
from storage.database import default_url, open_database
from storage.server_lock import only_server
from tests.e2e import steps
from tests.processes import free_port

CONTEXT = "#context textarea"


def test_a_refusal_goes_once_the_form_changes_and_comes_again(page):
    refusal = page.locator("#notice [role=alert]")
    for _ in range(2):
        steps.run(page)
        expect(refusal).to_be_visible()  # a hidden one still has its text
        expect(refusal).to_contain_text("The context is empty")
        page.locator(CONTEXT).fill(" ")
        expect(refusal).to_be_hidden()
    put = """() => {
      const box = document.querySelector("#context textarea");
      box.value = "good \\ud800 text";
      box.dispatchEvent(new Event("input", {bubbles: true}));
    }"""
    page.evaluate(put)
    steps.run(page)
    expect(refusal).to_contain_text("lone surrogate) at position 5")


def test_a_wrong_field_is_marked_with_the_sentence_beside_it_and_nothing_is_queued(page, app):
    steps.fill(page)
    before = app.services.count_by_state()
    field = page.locator("#protect textarea")
    field.fill("words that are nowhere")
    steps.run(page)
    told = page.locator("#protect .ckv-wrong")
    expect(told).to_contain_text("'words that are nowhere' does not occur in the compressed")
    expect(field).to_have_attribute("aria-invalid", "true")
    assert told.get_attribute("id") in field.get_attribute("aria-describedby")
    expect(told).to_be_in_viewport()
    steps.expect_well_made(page)
    field.fill("the weather was fair")
    expect(told).to_have_count(0)
    expect(field).not_to_have_attribute("aria-invalid", "true")
    steps.open_advanced(page)
    page.locator("#parameter-window input").fill("many")
    steps.open_advanced(page)
    steps.run(page)
    expect(page.locator("#parameter-window .ckv-wrong")).to_be_in_viewport()
    assert app.services.count_by_state() == before


def test_a_wrong_line_is_named_as_soon_as_it_is_left_and_stays_as_typed(page):
    steps.fill(page)
    steps.open_advanced(page)
    box, line = page.get_by_label("More variants"), page.locator("#variants-line")
    box.fill("snapkv:budget=64\nsnapkw")
    box.blur()
    expect(line).to_contain_text("line 2: Unknown method 'snapkw'. Did you mean 'snapkv'?")
    steps.run(page)
    expect(page.locator("#notice [role=alert]")).to_contain_text("line 2: Unknown method")
    assert box.input_value() == "snapkv:budget=64\nsnapkw"
    box.fill("snapkv:budget=64")
    box.blur()
    expect(line).to_contain_text("3 variants:")


def test_what_only_the_engine_can_know_fails_the_run_with_a_sentence(page):
    steps.fill(page)
    box = page.get_by_role("combobox", name="Model")
    box.fill("missing")
    box.press("Enter")
    steps.run(page)
    steps.expect_state(page, "failed")
    expect(page.locator("#status")).to_contain_text("No model 'missing' was found")
    assert "Traceback" not in page.locator("#status").inner_text()
    page.get_by_role("button", name=re.compile("^Settings: ")).click()
    assert page.locator(CONTEXT).input_value() == steps.TEXT


def test_only_utf8_text_files_are_opened(page, tmp_path):
    files = {
        "latin.txt": ("caf\u00e9".encode("latin-1"), "latin.txt is not UTF-8 text"),
        "zeros.bin": (b"\x00\x01", "zeros.bin is not a text file"),
        "huge.txt": (b"x" * 4_000_001, "the limit is 4,000,000"),
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
