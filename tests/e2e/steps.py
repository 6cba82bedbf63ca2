"""What a reader does on the pages, by role and label."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

TEXT = "The harbour report. " + "Ships came and went, and the weather was fair. " * 12
QUESTION = "How was the weather?"
RUN_LIMIT_MS = 90_000
# More than a test waits for; such a run is cancelled in the end.
ENDLESS_TOKENS = 1024
# Goes on when two frames were drawn there: a busy browser draws none for longer than one waits.
SCROLL = """top => new Promise((done) => {
  window.scrollTo(0, top);
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));
})"""


def log_in(page: Page, url: str, user: str) -> None:
    """On the login page; `user` has the password of tests/ui/served_app.py."""
    page.goto(f"{url}/login")
    page.get_by_label("User name").fill(user)
    page.get_by_label("Password").fill(f"{user}-secret")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


def fill(
    page: Page,
    *,
    context: str = TEXT,
    question: str = QUESTION,
    variants: tuple[str, ...] = ("Full cache", "SnapKV"),
    budget: str = "48",
    new_tokens: int = 6,
) -> None:
    """Fill the form; exactly these variants are ticked."""
    page.locator("#context textarea").fill(context)
    page.locator("#question textarea, #question input").first.fill(question)
    tick(page, "#variants", variants)
    page.locator("#budget input, #budget textarea").first.fill(budget)
    set_new_tokens(page, new_tokens)


def tick(page: Page, group: str, labels: tuple[str, ...]) -> None:
    """Choose exactly these in a picker."""
    picker = page.locator(group)
    picker.get_by_role("button", name="None").click()
    for label in labels:
        picker.get_by_role("checkbox", name=label, exact=True).check()


def set_new_tokens(page: Page, count: int) -> None:
    """Type how many."""
    page.locator("#max-new-tokens input").fill(str(count))


def go_on_after_the_end(page: Page) -> None:
    """Tick the advanced setting that makes a run as long as its limit."""
    page.get_by_role("button", name="Advanced parameters").click()
    page.get_by_label("Ignore EOS").check()


def run(page: Page) -> None:
    """Click Run."""
    page.get_by_role("button", name="Run", exact=True).click()


def run_endlessly(page: Page) -> str:
    """Start a run that goes on until it is cancelled; returns its slug once text appears."""
    fill(page, new_tokens=ENDLESS_TOKENS)
    go_on_after_the_end(page)
    run(page)
    slug = wait_for_slug(page)
    expect_state(page, "running")
    expect(generated(page, "Full cache")).not_to_have_text("", timeout=RUN_LIMIT_MS)
    return slug


def wait_for_slug(page: Page) -> str:
    """The run that the address shows."""
    page.wait_for_url("**/run?id=*")
    return page.url.partition("id=")[2].partition("&")[0]


def expect_state(page: Page, state: str) -> None:
    """Wait until the status bar says so."""
    bar = page.locator(f"#status [data-state={state}]")
    expect(bar).to_be_visible(timeout=RUN_LIMIT_MS)


def cancel(page: Page) -> None:
    """Cancel and wait for the end."""
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect_state(page, "cancelled")


def generated(page: Page, label: str) -> Locator:
    """The text of one variant's card."""
    return page.get_by_label(f"Text of {label}", exact=True)


def see_everything(page: Page) -> None:
    """Scroll through the page: some parts fetch and draw only when seen."""
    height = int(page.evaluate("document.documentElement.scrollHeight"))
    for top in (*range(0, height, 500), 0):
        page.evaluate(SCROLL, top)


def expect_well_made(page: Page) -> None:
    """axe finds nothing, and nothing is wider than the page."""
    # Colours fade from one theme to the other.
    page.wait_for_function("document.getAnimations().every((each) => each.playState !== 'running')")
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["target"] for n in v["nodes"]][:5]) for v in found] == [], page.url
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page.url
