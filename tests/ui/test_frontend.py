"""Gradio's files: packed and kept, and named in the head of each page before they are imported."""

import gzip
import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from tests.ui.scripted_services import finished
from tests.ui.served_app import Served
from ui.frontend import ASSETS, needed_files, types_of

PLAIN = {"Accept-Encoding": "identity"}
FETCHED = """() => performance.getEntriesByType("resource").map((each) => each.name)
  .filter((name) => name.includes("/assets/")).map((name) => name.split("/").pop())"""


@pytest.fixture(scope="module")
def app(open_app: Served) -> Served:
    return open_app


def named(page: str) -> list[str]:
    """Files that a page's head names."""
    return re.findall(r'(?:src|href)="\./assets/([^"]+)"', page)


def test_a_file_is_the_same_packed_or_plain_and_browsers_may_keep_it(app: Served):
    name = needed_files({"html"})[0]
    content = (ASSETS / name).read_bytes()
    with app.client() as client:
        for _ in range(2):  # read, then remembered
            packed = client.get(f"/assets/{name}")
            plain = client.get(f"/assets/{name}", headers=PLAIN)
            assert packed.content == plain.content == content
        assert packed.headers["content-encoding"] == "gzip"
        assert int(packed.headers["content-length"]) == len(gzip.compress(content))
        assert "content-encoding" not in plain.headers
        for answer in (packed, plain):
            assert "javascript" in answer.headers["content-type"]
            assert "immutable" in answer.headers["cache-control"]
            assert "Accept-Encoding" in answer.headers["vary"]


def test_a_file_that_is_not_there_is_not_found(app: Served):
    with app.client() as client:
        assert client.get("/assets/none.js").status_code == 404


def test_every_page_names_files_that_exist_once_and_keeps_its_length(app: Served):
    with app.client() as client:
        for path in ("/", "/compare-runs", "/sweep", "/runs", "/methods", "/aggregate"):
            page = client.get(path, headers=PLAIN)
            files = named(page.text)
            assert len(files) > 20
            assert len(files) == len(set(files))
            assert all((ASSETS / name).is_file() for name in files)
            assert int(page.headers["content-length"]) == len(page.content)


def test_what_is_no_page_stays_as_it_is(app: Served):
    def without_date(answer: httpx.Response) -> tuple[int, bytes]:
        return answer.status_code, answer.content

    with app.client() as client:
        assert without_date(client.get("/healthz")) == (200, b'{"ok":true}')
        assert client.head("/runs").status_code in (200, 405)


def test_a_first_visit_imports_nothing_that_its_head_does_not_name(app: Served, browser: Browser):
    run = f"/run?id={finished(app.services, 'steps 1')}"
    with app.client() as client:
        files = {path: set(named(client.get(path).text)) for path in ("/", run)}
    for path, expected in files.items():
        context = browser.new_context()
        page = context.new_page()
        page.goto(app.url + path)
        page.locator("[data-ready]").first.wait_for(state="attached")
        page.wait_for_function("document.readyState === 'complete'")
        fetched = page.evaluate(FETCHED)
        context.close()
        assert len(fetched) == len(set(fetched))
        assert set(fetched) == expected


CLONES = """() => {
  const kept = {list: [1, {deep: "x"}], when: new Date(0)};
  const copy = structuredClone(kept);
  const name = (value) => {
    try { return String(structuredClone(value)); } catch (error) { return error.name; }
  };
  return {
    same: JSON.stringify(copy) === JSON.stringify(kept) && copy.when instanceof Date,
    apart: copy !== kept && copy.list !== kept.list && copy.list[1] !== kept.list[1],
    plain: ["a", 1.5, false, null].map((value) => structuredClone(value)),
    none: structuredClone(undefined) === undefined,
    big: structuredClone(2n) === 2n,
    refused: [name(() => 1), name(Symbol("x")), name({act() {}})],
    moved: (() => {
      const from = new ArrayBuffer(8);
      return [structuredClone(from, {transfer: [from]}).byteLength, from.byteLength];
    })(),
  };
}"""


def test_values_are_cloned_as_the_browser_does(app: Served, browser: Browser):
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{app.url}/methods")
    assert "native code" not in page.evaluate("String(structuredClone)")
    found = page.evaluate(CLONES)
    context.close()
    assert found == {
        "same": True,
        "apart": True,
        "plain": ["a", 1.5, False, None],
        "none": True,
        "big": True,
        "refused": ["DataCloneError"] * 3,
        "moved": [8, 0],
    }


def test_of_what_is_hidden_itself_only_areas_count():
    layout = {"children": [{"id": 1, "children": [{"id": 2}]}, {"id": 3}, {"id": 4}, {"id": 5}]}
    config = {
        "components": [
            {"id": 1, "type": "accordion", "props": {"visible": False}},
            {"id": 2, "type": "dropdown", "props": {}},
            {"id": 3, "type": "textbox", "props": {"visible": "hidden"}},
            {"id": 4, "type": "button", "props": {"visible": False}},
            {"id": 5, "type": "api", "props": {}},
        ],
        "page": {"run": {"layout": layout}},
    }
    assert types_of(config, "run") == {"accordion", "dropdown", "textbox", "state"}


def test_a_frontend_that_is_built_another_way_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "index.html").write_text("<script src=main.js></script>")
    monkeypatch.setattr("ui.frontend.FRONTEND", tmp_path)
    assert needed_files({"html"}) == []


def test_pages_are_plain_data(app: Served):
    # An object among it would be copied whole with every page that is served.
    assert json.loads(json.dumps(app.blocks.config))["components"]
