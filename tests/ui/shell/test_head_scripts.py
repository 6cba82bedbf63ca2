"""Scripts in the head of each page: values are cloned as the browser does."""

import json

import pytest
from playwright.sync_api import Browser

from tests.ui.served_app import Served


@pytest.fixture(scope="module")
def app(open_app: Served) -> Served:
    return open_app


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


def test_pages_are_plain_data(app: Served):
    # An object among it would be copied whole with every page that is served.
    assert json.loads(json.dumps(app.blocks.config))["components"]
