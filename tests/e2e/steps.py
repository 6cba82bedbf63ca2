"""What a reader does on the pages, by role and label."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, ViewportSize, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

DESK: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 430, "height": 900}
TEXT = "The harbour report. " + "Ships came and went, and the weather was fair. " * 12
QUESTION = "How was the weather?"
RUN_LIMIT_MS = 90_000
# Goes on when two frames were drawn there: a busy browser draws none for longer than one waits.
# Chromium was once seen to draw none any more, and `evaluate` itself waits for ever.
SCROLL = """top => new Promise((done) => {
  window.scrollTo(0, top);
  setTimeout(done, 10_000);
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));
})"""


def log_in(page: Page, url: str, user: str, path: str = "/") -> None:
    """On the way to a page; `user` has the password of tests/ui/served_app.py."""
    page.goto(f"{url}/login?next={path}")
    page.get_by_label("User name").fill(user)
    page.get_by_label("Password").fill(f"{user}-secret")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("button", name="Log out", exact=True)).to_be_visible()


def open_form(page: Page, address: str) -> None:
    """Go there and wait until it listens: what is typed and clicked before is lost."""
    page.goto(address)
    page.locator("#context-bar [data-ready]").wait_for()


def fill(
    page: Page,
    *,
    context: str = TEXT,
    question: str = QUESTION,
    variants: tuple[str, ...] = ("Full cache", "SnapKV"),
    budget: str = "48",
    new_tokens: int = 6,
) -> None:
    """Fill the form; exactly these methods are chosen."""
    page.locator("#context textarea").fill(context)
    page.locator("#question textarea, #question input").first.fill(question)
    tick(page, "#variants", variants)
    page.locator("#budget input, #budget textarea").first.fill(budget)
    set_new_tokens(page, new_tokens)


CHIP = "summary.ckv-chip:not(.ckv-add)"


def tick(page: Page, group: str, labels: tuple[str, ...]) -> None:
    """Choose exactly these methods, beside the full cache, which stays."""
    chips = page.locator(f"{group} {CHIP}")
    page.locator(f"{group} .ckv-add").wait_for()
    while chips.count():
        chips.first.press("Delete")
    for label in labels:
        if label == "Full cache":
            continue
        method, _, version = label.removeprefix("CriticalKV-").removesuffix(")").partition(" (")
        add_method(page, method)
        if version:
            chips.last.click()
            menu = page.get_by_role("dialog", name=method)
            if menu.get_by_role("switch").get_attribute("aria-checked") == "false":
                menu.get_by_role("switch").click()
            menu.get_by_role("button", name=version).click()
            page.keyboard.press("Escape")


def add_method(page: Page, label: str) -> None:
    """Choose one more method in the list of all."""
    page.locator("#variants .ckv-add").click()
    page.get_by_label("Search methods").fill(label)
    name = page.locator("#variants .ckv-option .ckv-name")
    name.get_by_text(label, exact=True).click()
    page.keyboard.press("Escape")


def set_new_tokens(page: Page, count: int) -> None:
    """Type how many; Advanced, where they stand, is as it was before."""
    field = page.locator("#max-new-tokens input")
    is_folded = not field.is_visible()
    if is_folded:
        open_advanced(page)
    field.fill(str(count))
    if is_folded:
        open_advanced(page)


def open_advanced(page: Page) -> None:
    """Show what a first run does not need, or hide it."""
    page.get_by_role("button", name="Advanced").click()


def run(page: Page) -> None:
    """Click Run."""
    page.get_by_role("button", name="Run", exact=True).click()


def run_to_its_end(page: Page) -> str:
    """Click Run and wait; returns the run's slug."""
    run(page)
    slug = wait_for_slug(page)
    expect_state(page, "done")
    return slug


def wait_for_slug(page: Page) -> str:
    """The run that the address shows; where it stays away, the error holds what the page says."""
    try:
        page.wait_for_url("**/run?id=*")
    except PlaywrightTimeout as error:
        said = page.locator("body").inner_text()
        raise AssertionError(f"No run at {page.url}. The page says:\n{said}") from error
    return page.url.partition("id=")[2].partition("&")[0]


def expect_state(page: Page, state: str) -> None:
    """Wait until the page says so."""
    bar = page.locator(f"#verdict [data-state={state}]")
    expect(bar).to_be_visible(timeout=RUN_LIMIT_MS)


def generated(page: Page, label: str) -> Locator:
    """What one variant said."""
    return page.get_by_label(f"Text of {label}", exact=True)


def open_sections(page: Page) -> None:
    """Open what a result at several budgets folds, and wait for its tables."""
    page.locator("#grid .ckv-point").first.wait_for()
    if page.get_by_role("tab", name="More").is_visible():
        page.get_by_role("tab", name="More").click()
    page.get_by_role("button", name="All points").press("Enter")
    expect(page.locator("#sweep-points tbody tr").first).to_be_visible()
    if page.locator("#sweep-quality button").is_visible():
        page.get_by_role("button", name="Quality against budget").press("Enter")
        expect(page.locator("#sweep-savings tbody tr").first).to_be_visible()


def see_everything(page: Page) -> None:
    """Scroll through the page: some parts fetch and draw only when seen."""
    height = int(page.evaluate("document.documentElement.scrollHeight"))
    for top in (*range(0, height, 500), 0):
        page.evaluate(SCROLL, top)


def expect_well_made(page: Page) -> None:
    """axe finds nothing, and nothing is wider than the page."""
    # Colours fade from one theme to the other.
    page.wait_for_function("document.getAnimations().every((each) => each.playState !== 'running')")
    # What passes and what is undecided is not read, and takes a quarter of the time.
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    told = [(v["id"], [n["target"] for n in v["nodes"]][:5]) for v in found]
    assert told == [], f"{page.url}: {told}"  # no test's file, so pytest shows no values
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page.url


def expect_well_made_everywhere(page: Page) -> None:
    """On a phone in light, as the page is shown and will be again, and on a desk in dark."""
    expect_well_made(page)
    page.set_viewport_size(DESK)
    page.evaluate("document.body.classList.add('dark')")
    expect_well_made(page)
    page.evaluate("document.body.classList.remove('dark')")
    page.set_viewport_size(PHONE)


# Uses each control that is shown, also those that others bring, until there is no new one. Boxes
# and texts are put back. What leaves the page (links, New, Search, a run) is used by other tests.
WALK = """async (within) => {
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
      if (used.has(each) || each.disabled || !each.closest(within)) return false;
      if (each.closest("header, .modebar")) return false;
      const leaves = ["New", "Search", "Find the smallest budget", "Save as run"];
      if (leaves.includes(each.innerText) || each.innerText.endsWith("as a result")) return false;
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


def use_every_control(page: Page, within: str = "body") -> int:
    """Use each control once that the page shows within these parts; returns how many they were."""
    return page.evaluate(WALK, within)
