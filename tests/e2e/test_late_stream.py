"""A page that hears late that its stream ended still sees the answer of its next event."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from ckv_core.records.run_request import DEFAULT_MODEL
from tests.e2e import steps
from tests.ui.served_app import Served

# A busy page reads what came on a stream later than the answers of other requests.
LATE_MS = 1500
LATE = """(() => {
  const own = window.fetch;
  window.fetch = async (request, options) => {
    const answer = await own(request, options);
    if (!String(request.url ?? request).includes("/queue/data")) return answer;
    const late = new TransformStream({
      async transform(chunk, out) {
        for (const message of chunk.split(/(?<=\\n\\n)/)) {
          if (message.includes("close_stream")) {
            window.ending = true;
            await new Promise((go) => setTimeout(go, LATE_MS));
          }
          out.enqueue(message);
        }
      },
    });
    const body = answer.body.pipeThrough(new TextDecoderStream()).pipeThrough(late);
    return new Response(body.pipeThrough(new TextEncoderStream()), answer);
  };
})();""".replace("LATE_MS", str(LATE_MS))


@pytest.fixture
def late_page(browser, app: Served) -> Iterator[Page]:
    app.services.warm(DEFAULT_MODEL)  # else the page's stream waits for it
    with browser.new_context(viewport=steps.DESK) as context:
        context.add_init_script(LATE)
        page = context.new_page()
        steps.open_form(page, app.url)
        yield page


def test_an_event_that_begins_while_a_stream_ends_is_answered(late_page):
    steps.fill(late_page)
    late_page.wait_for_function("window.ending === true")
    late_page.wait_for_timeout(3 * LATE_MS)  # the last stream's end is heard
    late_page.evaluate("window.ending = false")
    context, count = late_page.locator("#context textarea"), late_page.locator("#context-bar")
    context.fill("one two three")
    expect(count).to_contain_text("3 of 8,192 tokens")
    late_page.wait_for_function("window.ending === true")
    context.fill("one two three four")
    expect(count).to_contain_text("4 of 8,192 tokens")
