"""Every control of every page is used once; whatever goes wrong on a page fails its test."""

import pytest
from playwright.sync_api import Page

from tests.e2e import steps
from tests.factories.app import prompt_run, request, store_run, store_study
from tests.factories.runs import done_result

# Of each page its address, what shows that it is filled, and how many controls it has at least.
PAGES = {
    "compare": ("/", "#context-bar [data-ready]", 30),
    "result": ("/run?id={run}", "#answers tbody tr", 30),
    "many budgets": ("/run?id={sweep}", "#grid .ckv-point", 20),
    "samples of a file": ("/?source=pasted", "#study-name :is(input, textarea)", 5),
    "samples of a task": ("/?source=task", "#study-name :is(input, textarea)", 6),
    "many samples": ("/run?id={study}", "#study-samples tbody tr", 20),
    "several runs": ("/several?ids={sweep},{other}", "#several-table tbody tr", 20),
    "runs": ("/runs", "#runs tbody tr", 15),
    "caches": ("/caches", "#caches [data-ready]", 5),
    "methods": ("/methods", "#limits [data-ready]", 1),
}
# Whatever else the form has was used on the first page.
OF_SAMPLES = "[id^=study-], [id^=field-]"


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
    assert steps.use_every_control(page, OF_SAMPLES if "samples of" in name else "body") >= least
    page.close()
