"""Two people at once, each in a browser of their own: neither sees anything of the other."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.e2e import steps
from tests.ui.served_app import Served

WORDS = {"ann": "ann-apricot ann-acorn ann-alder", "bob": "bob-barley bob-birch bob-bramble"}
STEPS = {"ann": 40, "bob": 60}


@pytest.fixture(scope="module")
def app(team_app: Served) -> Served:
    return team_app


@pytest.fixture
def visitors(browser: Browser) -> Iterator[dict[str, BrowserContext]]:
    contexts = {
        user: browser.new_context(viewport={"width": 1440, "height": 900}) for user in WORDS
    }
    for context in contexts.values():
        context.set_default_timeout(20_000)
    yield contexts
    for context in contexts.values():
        context.close()


def test_two_runs_at_once_do_not_mix(app: Served, visitors: dict[str, BrowserContext]) -> None:
    pages: dict[str, Page] = {}
    for user, visitor in visitors.items():
        page = pages[user] = visitor.new_page()
        steps.log_in(page, app.url, user)
        page.locator("#context-bar [data-ready]").wait_for()
        steps.fill(page, context=WORDS[user], question=f"steps {STEPS[user]}")
    for page in pages.values():
        steps.run(page)
    slugs = {user: steps.wait_for_slug(page) for user, page in pages.items()}
    assert len(set(slugs.values())) == len(WORDS)
    for user, page in pages.items():
        other = "bob" if user == "ann" else "ann"
        expect(steps.generated(page, "full")).to_contain_text(f"w{STEPS[user] - 1}", timeout=30_000)
        steps.expect_state(page, "done")
        steps.see_everything(page)
        assert_nothing_of(page, other, slugs[other])
        page.goto(f"{app.url}/runs")
        expect(page.locator(f"a[href*='{slugs[user]}']").first).to_be_visible()
        assert_nothing_of(page, other, slugs[other])
        page.goto(f"{app.url}/run?id={slugs[other]}")
        expect(page.locator("main")).to_contain_text("There is no run")
        assert WORDS[other].split()[0] not in page.content()


def assert_nothing_of(page: Page, other: str, slug: str) -> None:
    shown = page.content()
    for word in (*WORDS[other].split(), slug):
        assert word not in shown
