"""Hostile text in every stored place, shown on every page of a real browser: nothing runs."""

import csv
import dataclasses
import io
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from ckv_core.config import CompareRequest
from ckv_core.events import RunFinished, RunPrepared
from ckv_core.records import VariantResult
from tests.e2e.steps import see_everything
from tests.ui.page_fakes import done_result
from tests.ui.served_app import Served, served

BUMP = "window.bumped=(window.bumped||0)+1"
# HTML, attributes, template literals of Gradio's own templates, Markdown, and a formula.
PAYLOADS = (
    f"<img src=x onerror={BUMP}>",
    f"\"><svg onload='{BUMP}'>",
    f"</script><script>{BUMP}</script>",
    f"${{{BUMP}}}`${{{BUMP}}}`{{{{{BUMP}}}}}",
    f"[x](javascript:{BUMP})<iframe srcdoc='<script>parent.{BUMP}</script>'>",
)
HOSTILE = "=1+1 " + " ".join(PAYLOADS)
TAG = "onerror"  # tags are words: markup is refused when they are set
# Page, and a piece of hostile text that it shows once it is complete.
SEEN = {
    "/run?id={slug}": "onerror",
    "/run?id={other}": "onerror",
    "/runs": "onerror",
    "/runs?q=onload&tag=onerror": "onerror",
    "/?from={slug}": "Settings of run",
    "/sweep?from={slug}": "Sweep",
    "/compare-runs?ids={slug},{other}": "onerror",
    "/aggregate?ids={slug},{other}": "Several runs",
}
PAGES = list(SEEN)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("xss"), with_logins=False) as app:
        yield app


@pytest.fixture(scope="module")
def slugs(app: Served) -> tuple[str, str]:
    """Two done runs full of hostile text; the second came out of an imported file."""
    first, second = store(app), store(app)
    bundle = app.services.export_bundle([second])
    app.services.library.delete([second])
    (imported,) = app.services.import_bundle(bundle).imported
    for slug in (first, imported):
        app.services.library.annotate(slug, HOSTILE[:200], HOSTILE, [TAG])
    return first, imported


def store(app: Served) -> str:
    """Record a run whose every text is hostile; returns its slug."""
    recorder = app.services._recorder
    asked = CompareRequest(context=HOSTILE, question=HOSTILE, answer=HOSTILE, model=HOSTILE[:200])
    slug = recorder.create(asked, HOSTILE)
    recorder.start(slug)
    result = done_result()
    assert result.model is not None
    assert result.prompt is not None
    model = dataclasses.replace(result.model, name=HOSTILE[:200])
    pieces = tuple(HOSTILE for _ in result.prompt.pieces)
    prompt = dataclasses.replace(result.prompt, pieces=pieces)
    variants = tuple(
        hostile_variant(variant, f"=1+1 {PAYLOADS[index]} {PAYLOADS[-1 - index]}"[:200])
        for index, variant in enumerate(result.variants)
    )
    recorder.apply(slug, RunPrepared(model, prompt, variants, {PAYLOADS[0]: HOSTILE[:200]}))
    recorder.apply(slug, RunFinished({"prefill": 1.0}))
    recorder.finish(slug)
    return slug


def hostile_variant(variant: VariantResult, label: str) -> VariantResult:
    """The same figures under hostile names."""
    assert variant.receipt is not None
    return dataclasses.replace(
        variant,
        label=label,
        receipt=dataclasses.replace(variant.receipt, warnings=(HOSTILE,)),
        text="".join(PAYLOADS),
        token_ids=tuple(range(len(PAYLOADS))),
        token_texts=PAYLOADS,
    )


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """One page for all visits; what leaves it for a dialog or another origin is noted."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(30_000)
    page = context.new_page()
    yield page
    context.close()


@pytest.mark.parametrize("address", PAGES)
def test_nothing_runs(page: Page, app: Served, slugs: tuple[str, str], address: str) -> None:
    page.goto(app.url + address.format(slug=slugs[0], other=slugs[1]))
    page.wait_for_function("text => document.body.innerText.includes(text)", arg=SEEN[address])
    see_everything(page)
    for summary in page.locator("summary:visible").all()[:10]:
        summary.click()
    assert page.evaluate("window.bumped || 0") == 0
    injected = "img[src='x'], svg[onload], iframe[srcdoc], a[href^='javascript:']"
    assert page.locator(injected).count() == 0


def test_the_counter_counts(page: Page, app: Served) -> None:
    """The payloads would be seen if they ran."""
    page.goto(app.url + "/healthz")
    for payload in PAYLOADS[:2]:
        page.evaluate("html => { document.body.innerHTML = html }", payload)
    page.wait_for_function("window.bumped >= 1")


@pytest.mark.parametrize("name", ["table.csv", "layers.csv", "heads.csv", "budgets.csv"])
def test_a_table_is_a_download_without_formulas(
    app: Served, slugs: tuple[str, str], name: str
) -> None:
    with app.client() as client:
        answer = client.get(f"/data/{slugs[0]}/{name}")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    cells = [cell for row in csv.reader(io.StringIO(answer.text)) for cell in row]
    # Only the summary names variants in full.
    assert name != "table.csv" or any("onerror" in cell for cell in cells)
    assert not [cell for cell in cells if cell.startswith(("=", "@", "\t", "\r"))]
