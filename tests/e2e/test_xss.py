"""Hostile text in every stored place and file, on every page of a real browser: nothing runs."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from ckv_core.records.codec import to_json
from ckv_core.records.grid import at_points
from ckv_core.records.records import Candidate, FollowUp, ForcedStep, SampledText, VariantResult
from ckv_core.records.run_request import Kind, RunRequest
from storage.database import default_url, open_database
from tests.e2e.steps import DESK, PHONE, see_everything
from tests.factories.app import empty, states_of, store_run
from tests.factories.runs import done_result, sweep_result
from tests.storage.bundles import exported, made, resealed, rewritten, run_values, sealed
from tests.ui.served_app import Served
from ui.limits import Limits

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
STRIP = ("forced_kl", "forced_top1", "forced_rank")
# Page, and what on it holds hostile text once it is complete: `text` of an element, or the
# `value` of a field. No word of it is the page's own.
SEEN = {
    "/run?id={slug}": ("#answers", "text"),
    "/run?id={other}": ("#answers", "text"),
    "/run?id={sweep}": ("#grid", "text"),
    "/runs?text=onload": ("#runs tbody", "text"),
    "/?from={slug}": ("#context textarea", "value"),
    "/?from={sweep}": ("#context textarea", "value"),
    "/several?ids={slug},{other}": ("#several-beside", "text"),
    "/several?ids={slug},{second}": ("#several-table", "text"),
}
BODY_MIB = Limits().body_mib
Slugs = dict[str, str]


@pytest.fixture(scope="module")
def stored() -> Slugs:
    """What `slugs` stored; a test that deletes all runs empties it."""
    return {}


@pytest.fixture
def slugs(app, stored) -> Slugs:
    """Runs full of hostile text; `other` failed and came out of an imported bundle."""
    if stored:
        return stored
    failed = store(app, reason=HOSTILE)
    bundle = app.services.export_bundle([failed])
    app.services.library.delete([failed])
    (imported,) = app.services.import_bundle(bundle).imported
    stored |= {
        "slug": store(app),
        "second": store(app, first_token=5),
        "other": imported,
        "sweep": store(app, kind="sweep"),
    }
    for slug in stored.values():
        app.services.library.annotate(slug, HOSTILE[:200], HOSTILE)
    return stored


def store(app: Served, *, kind: Kind = "compare", first_token: int = 0, reason: str = "") -> str:
    """Record a run whose every text is hostile; returns its slug."""
    result = sweep_result(generated=True) if kind == "sweep" else done_result()
    asked = RunRequest(
        context=HOSTILE,
        question=HOSTILE,
        answer=HOSTILE,
        model=HOSTILE[:200],
        variants=tuple(variant.spec for variant in result.variants),
        follow_ups=() if kind == "sweep" else (HOSTILE,),
    )
    asked = at_points(asked, asked.variants) if kind == "sweep" else asked
    result.model = dataclasses.replace(result.model, name=HOSTILE[:200])
    result.prompt = dataclasses.replace(
        result.prompt,
        pieces=tuple(HOSTILE for _ in result.prompt.pieces),
        token_ids=(first_token, *result.prompt.token_ids[1:]),
    )
    result.variants = [
        hostile_variant(
            variant, f"=1+1 {PAYLOADS[index % 3]} {PAYLOADS[-1 - index % 3]}"[:195] + f" {index}"
        )
        for index, variant in enumerate(result.variants)
    ]
    result.environment = {PAYLOADS[0]: HOSTILE[:200]}
    return store_run(app.services, asked, result, reason=reason)


def hostile_variant(variant: VariantResult, label: str) -> VariantResult:
    """The same figures under hostile names; every cell of a spreadsheet starts with a formula."""
    candidate = Candidate(1, HOSTILE, 0.5)
    answered = FollowUp(
        question=HOSTILE,
        text=HOSTILE,
        token_ids=(1,),
        token_texts=(HOSTILE,),
        stopped="eos",
        agreement=0.5,
        first_difference=0,
    )
    return dataclasses.replace(
        variant,
        label=label,
        receipt=dataclasses.replace(variant.receipt, warnings=(HOSTILE,)),
        text=HOSTILE,
        token_ids=tuple(range(len(PAYLOADS) + 1)),
        token_texts=("=1+1 ", *PAYLOADS),
        analysis={name: np.ones(1, np.float32) for name in STRIP},
        forced_steps=(ForcedStep((candidate,), (candidate,)),),
        follow_ups=(answered,),
        sampled_texts=(SampledText(HOSTILE, "eos"), SampledText("=1+1", "length", False)),
    )


@pytest.fixture(scope="module")
def page(browser) -> Iterator[Page]:
    """One page for all visits."""
    context = browser.new_context(viewport=DESK, accept_downloads=True)
    page = context.new_page()
    yield page
    context.close()


def assert_nothing_ran(page: Page) -> None:
    assert page.evaluate("window.bumped || 0") == 0
    injected = "img[src='x'], svg[onload], iframe[srcdoc], a[href^='javascript:']"
    assert page.locator(injected).count() == 0


@pytest.mark.parametrize("address", SEEN)
def test_nothing_runs(page, app, slugs, address):
    page.goto(app.url + address.format(**slugs))
    place, kind = SEEN[address]
    shown = page.locator(place).first
    if kind == "value":
        expect(shown).to_have_value(HOSTILE)
    else:
        expect(shown).to_contain_text("window.bumped")
    see_everything(page)
    for summary in page.locator("summary:visible").all()[:10]:
        summary.click()
        page.keyboard.press("Escape")  # a menu would cover the next
    assert_nothing_ran(page)


def test_nothing_runs_in_the_parts_that_a_reader_opens(page, app, slugs):
    page.set_viewport_size(DESK)
    page.goto(f"{app.url}/run?id={slugs['slug']}")
    expect(page.locator("#follow-ups")).to_contain_text("window.bumped")
    page.get_by_role("button", name="Sampled texts").click()
    expect(page.locator("#sampled tbody")).to_contain_text("window.bumped")
    page.get_by_role("button", name="Perturbation").click()
    chart = page.locator("[data-chart=fidelity]")
    # Charts above it are drawn meanwhile and push it out of view, where nothing is drawn.
    page.wait_for_function(
        """() => {
          const chart = document.querySelector("[data-chart=fidelity]");
          chart?.scrollIntoView();
          return chart?.querySelector("summary")?.checkVisibility();
        }"""
    )
    chart.get_by_text("Export").click()
    chart.get_by_role("button", name="As a table").click()
    expect(chart.locator("table")).to_contain_text("window.bumped")
    page.locator("#share summary").click()
    expect(page.locator("#share")).to_contain_text("has no logins")
    assert_nothing_ran(page)


def test_the_counter_counts(page, app, faults):
    """The payloads would be seen if they ran."""
    faults.expect("404")
    page.goto(app.url + "/healthz")
    for payload in PAYLOADS[:2]:
        page.evaluate("html => { document.body.innerHTML = html }", payload)
    page.wait_for_function("window.bumped >= 1")


# --- files given to the Runs page: one sentence each, nothing stored, the app goes on


def bundle_of_one(folder: Path) -> tuple[str, bytes]:
    """A run's slug and a bundle of it, made elsewhere."""
    with closing(open_database(default_url(folder))) as database:
        slug = made(database)
        return slug, exported(database, slug)


def hostile_files(folder: Path) -> dict[str, tuple[bytes, str]]:
    """By name: the file, and what the page must say of it; all others are tests/storage's."""
    _, data = bundle_of_one(folder)
    marked = to_json(done_result()) | {"environment": {PAYLOADS[0]: 5}}
    return {
        "bomb.zip": (
            sealed("a" * 12, b" " * 20_000_000),
            "a file in it is not valid JSON (one value is expected)",
        ),
        "path upwards.zip": (
            rewritten(data, {}, [("../../outside-it", b"x")]),
            "a file in it is no run, which is called runs/SLUG.json",
        ),
        "page not zip.zip": (HOSTILE.encode(), "it is neither a bundle nor a result JSON"),
        "markup as a state.zip": (
            resealed(run_values(data) | {"state": PAYLOADS[0]}),
            "wrong at state",
        ),
        "over the limit.zip": (
            b"PK" + bytes(BODY_MIB * 2**20),
            f"takes {BODY_MIB} MiB at a time",
        ),
        f"{PAYLOADS[0]}.json": (json.dumps(marked).encode(), PAYLOADS[0]),
    }


def give(page: Page, path: Path, data: bytes) -> None:
    """Choose a file on the page."""
    path.write_bytes(data)
    page.locator("#runs .ckv-files [role=status]").evaluate("line => { line.textContent = '' }")
    page.locator("#runs input[data-import]").set_input_files(path)


def test_a_hostile_file_is_one_sentence_and_stores_nothing_and_a_right_one_is_taken_after_it(
    page, app, stored, tmp_path_factory, faults
):
    faults.expect("400")
    empty(app.services)
    stored.clear()
    page.set_viewport_size(PHONE)
    page.goto(f"{app.url}/runs")
    expect(page.locator("#runs")).to_contain_text("No runs yet")
    told = page.locator("#runs .ckv-files [role=status]")
    folder = tmp_path_factory.mktemp("there")
    for name, (data, sentence) in hostile_files(folder).items():
        give(page, folder / name, data)
        expect(told, name).to_contain_text(sentence)
        expect(told, name).to_have_attribute("data-tone", "error")
        assert states_of(app.services) == {}, name
    with app.client() as client:
        assert client.get("/healthz").status_code == 200
    expect(page.get_by_role("button", name="Import", exact=True)).to_be_enabled()
    assert_nothing_ran(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 430
    assert list(tmp_path_factory.getbasetemp().rglob("*outside-it*")) == []

    slug, data = bundle_of_one(tmp_path_factory.mktemp("again"))
    title = HOSTILE[:300]
    named = resealed(run_values(data) | {"title": title, "note": HOSTILE})
    give(page, folder / f"{PAYLOADS[0]}.zip", named)
    expect(page.locator("#runs .ckv-files")).to_contain_text("Imported 1 of 1 run.")
    row = page.locator("#runs tbody tr:has(input)")
    expect(row).to_have_count(1)
    expect(row.locator("a").first).to_have_text(title)
    expect(row).to_contain_text(PAYLOADS[-1])
    assert_nothing_ran(page)
    page.goto(f"{app.url}/run?id={slug}")
    expect(page.locator("#run-title")).to_contain_text(PAYLOADS[0])
    assert_nothing_ran(page)
