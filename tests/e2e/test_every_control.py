"""Every control of every page is used once; whatever goes wrong on a page fails its test."""

import pytest
from playwright.sync_api import Page

from tests.e2e import steps
from tests.factories.app import prompt_run, request, store_run, store_study
from tests.factories.runs import done_result

# Of each page its address, what shows that it is filled, and how many controls it has at least.
PAGES = {
    "compare": ("/", "#context-bar [data-ready]", 60),
    "result": ("/run?id={run}", "#summary tbody tr", 30),
    "many budgets": ("/run?id={sweep}", "#sweep-points tbody tr", 30),
    "studies": ("/studies", "#studies tbody tr", 30),
    "study": ("/study?id={study}", "#study-samples tbody tr", 20),
    "aggregate": ("/aggregate?ids={sweep},{other}", "#aggregate-table tbody tr", 20),
    "two runs": ("/compare-runs?ids={run},{twin}", "#differences details", 3),
    "runs": ("/runs", "#runs tbody tr", 15),
    "caches": ("/caches", "header", 5),
    "methods": ("/methods", "header", 1),
}
# Uses each control that is shown, also those that others bring, until there is no new one. Boxes
# and texts are put back. What leaves the page (links, New, Search) is used by other tests.
WALK = """async () => {
  const kinds = "button, summary, select, textarea, input:not([type=file]), canvas[tabindex]";
  const used = new Set();
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const type = (each, value) => {
    Object.getOwnPropertyDescriptor(Object.getPrototypeOf(each), "value").set.call(each, value);
    for (const name of ["input", "change"]) each.dispatchEvent(new Event(name, { bubbles: true }));
  };
  HTMLAnchorElement.prototype.click = () => {}; // files that are made in the browser
  HTMLInputElement.prototype.showPicker = () => {};
  for (let round = 0; round < 4; round++) {
    const found = [...document.querySelectorAll(kinds)].filter((each) => {
      if (used.has(each) || each.disabled || each.closest("header, .modebar")) return false;
      if (["New", "Search"].includes(each.innerText)) return false;
      if (!each.checkVisibility({ visibilityProperty: true })) return false;
      return each.getBoundingClientRect().width > 1;
    });
    if (!found.length) break;
    for (const each of found) {
      used.add(each);
      if (!each.isConnected) continue;
      each.focus();
      if (each.matches("select")) {
        const former = each.value;
        for (const option of [...each.options].slice(0, 3)) type(each, option.value);
        type(each, former);
      } else if (each.matches("textarea, input:not([type=checkbox], [type=radio])")) {
        const former = each.value;
        type(each, each.type === "date" ? "2026-01-02" : "7");
        await pause(0);
        type(each, former);
        each.blur();
      } else {
        each.click();
        await pause(0);
        if (each.matches("[type=checkbox]") && each.isConnected) each.click();
      }
      await pause(10);
    }
    await pause(300);
  }
  return used.size;
}"""


@pytest.fixture(scope="module")
def slugs(open_app) -> dict[str, str]:
    """What the pages show."""
    services = open_app.services
    sweeps = {name: prompt_run(at) for at, name in enumerate(("sweep", "other"))}
    return {
        "run": store_run(services, request(), done_result()),
        "twin": store_run(services, request(answer="x"), done_result()),
        "study": store_study(services),
    } | {name: store_run(services, run.request, run.result) for name, run in sweeps.items()}


@pytest.mark.parametrize("name", PAGES)
def test_every_control_is_used(visitor, open_app, slugs, name):
    path, sign, least = PAGES[name]
    page: Page = visitor.new_page()
    page.set_viewport_size(steps.DESK)
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"{open_app.url}{path.format(**slugs)}")
    page.locator(sign).first.wait_for(state="attached")
    assert page.evaluate(WALK) >= least
    page.close()
