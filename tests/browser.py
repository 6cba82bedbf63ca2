"""The Chromium that all page tests share, and what may not happen on any page in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)
from playwright.sync_api import Error as PlaywrightError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Names of hosts that no test needs a network for.
    "--host-resolver-rules=MAP *.test 127.0.0.1",
]

# As long as Playwright's other waits: its 5 s are too few while tests keep every core busy.
expect.set_options(timeout=30_000)
# A failed request is noted as such; a page that is left ends its requests itself.
_NOTED = "Failed to load resource"
_LEFT = "net::ERR_ABORTED"
# Gradio shows what a handler threw and what it lost as a message on the page, and logs nothing.
_TOASTS = """new MutationObserver((changes) => {
  for (const node of changes.flatMap((each) => [...each.addedNodes]))
    if (node.nodeType === 1)
      for (const toast of [node, ...node.querySelectorAll("*")])
        if (toast.matches(".toast-body.error")) console.error(`Shown: ${toast.innerText}`);
}).observe(document, { childList: true, subtree: true });"""


@dataclass
class Faults:
    """What went wrong on any page of the browser since it was last taken.

    Attributes:
        found: console errors, uncaught errors, failed requests, requests that left this machine.
        expected: words of those that are the purpose of the test that runs.
    """

    found: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def expect(self, *words: str) -> None:
        """What has one of these words is no fault until the test's end."""
        self.expected += words

    def check(self, browser: Browser) -> None:
        """Raise AssertionError where one was not expected; none of them counts again."""
        for context in browser.contexts:
            context.cookies()  # What happened comes only while one waits for an answer.
        found = [each for each in self.found if not any(map(each.__contains__, self.expected))]
        self.found.clear()
        self.expected.clear()
        if found:
            raise AssertionError("\n".join(("On the pages of this test:", *found)))

    def watch(self, context: BrowserContext) -> None:
        """Note what goes wrong on its pages."""
        context.add_init_script(_TOASTS)
        context.on("console", self._note_message)
        context.on("weberror", lambda each: self.found.append(f"Uncaught: {each.error}"))
        context.on("request", self._note_request)
        context.on("requestfailed", self._note_failure)
        context.on(
            "response",
            lambda each: each.status >= 400 and self.found.append(f"{each.status} {each.url}"),
        )

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(_NOTED):
            self.found.append(f"Console: {message.text}")

    def _note_request(self, request: Request) -> None:
        host = urlsplit(request.url).hostname
        if host and host not in ("127.0.0.1", "localhost") and not host.endswith(".test"):
            self.found.append(f"Left this machine: {request.url}")

    def _note_failure(self, request: Request) -> None:
        if request.failure != _LEFT:
            self.found.append(f"{request.failure} {request.url}")


_FIELDS = "#ask :is(input, textarea, [role=alert])"
_HELD = f"""() => [...document.querySelectorAll("{_FIELDS}")]
  .map((each) => [each.closest("[id]")?.id, each.ariaLabel, each.value ?? each.textContent])
  .map((each) => JSON.stringify(each).slice(0, 160)).join("\\n")"""


def seen(page: Page) -> str:
    """The text of a page and the values of its form, for the report of a failed test."""
    try:
        shown = page.locator("body").aria_snapshot()
        return f"{page.url}\n{shown[:6_000]}\n{page.evaluate(_HELD)[:3_000]}"
    except PlaywrightError as error:
        return str(error)


FAULTS = Faults()  # of the one browser that runs


@contextmanager
def chromium() -> Iterator[Browser]:
    """The one on PATH, by the names that scripts/find_browser.sh looks for, or Playwright's own."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        browser.on("context", FAULTS.watch)
        yield browser
        browser.close()
