"""Sweeps: the form's request, grid and cost, and following a run."""

import asyncio
import dataclasses
from copy import copy
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace

import gradio as gr
import pytest

from ckv_core.results.figures import figures_in
from ckv_core.worker.messages import ModelStatus, TokensCounted
from tests.factories.app import SLUG, SWEEP_SLUG, FakeServices, sweep_snapshot
from tests.factories.runs import sweep_result
from ui.settings import Settings
from ui.sweep.form import SWEEP_CONTROLS, SweepForm
from ui.sweep.page import SweepPage
from ui.sweep.results import SweepFeed

SETTINGS = Settings.from_environ({})
TYPED = SweepForm(context="a long text")
SLOW = dataclasses.replace(TYPED, generate=True, max_new_tokens=1024)


@cache
def built() -> SweepPage:
    """Gradio builds a page for longer than a test asks it."""
    with gr.Blocks(analytics_enabled=False):
        return SweepPage(FakeServices(), SETTINGS, models=[SETTINGS.model], examples=[])


def sweep_page(services: FakeServices) -> SweepPage:
    page = copy(built())
    page._services = services
    return page


def ready_services(tokens: int = 10, limit: int = 8_192) -> FakeServices:
    services = FakeServices(sweep_snapshot())
    services.status = ModelStatus(TYPED.model, ready=True, message="ready")
    services.counted = TokensCounted("", tokens, tokens, limit)
    return services


# --- form -----------------------------------------------------------------------------------


# What the grid and the request refuse, by two; the rest is the form's own.
BAD_FORMS = {
    "empty context": ({"context": " "}, "The context is empty"),
    "no budget": ({"budgets": " , "}, "at least one budget"),
    "a budget below the window": ({"budgets": "8"}, "below the 32 that are always kept"),
    "no method": ({"methods": []}, "at least one method"),
    "methods of no kind": ({"methods": "snapkv"}, "at least one method"),
    "no new tokens": ({"generate": True, "max_new_tokens": 0}, "New tokens must be"),
    "context is a list": ({"context": ["a"]}, "not text"),
}


def test_bad_input_gets_one_sentence_and_starts_nothing():
    services = ready_services()
    page = sweep_page(services)
    for name, (changes, sentence) in BAD_FORMS.items():
        values = dict(zip(SWEEP_CONTROLS, TYPED.controls(), strict=True)) | changes
        slug, notice, *_ = page.ask(*values.values(), "")
        assert sentence in notice["text"], name
        assert (notice["tone"], slug, services.started) == ("error", "", []), name


def test_a_share_of_the_counted_prompt_below_the_window_is_marked_and_starts_nothing():
    services = ready_services(tokens=300)
    page, form = sweep_page(services), dataclasses.replace(TYPED, budgets="50%, 10%")
    slug, notice, *_ = page.ask(*form.controls(), "")
    assert "a budget of 30 tokens is below the 32" in notice["text"]
    assert notice["field"] == page.form.controls["budgets"].elem_id
    assert (slug, services.started) == ("", [])


def test_a_cheap_sweep_starts_at_once_with_alphas_for_the_methods_that_take_one():
    services = ready_services()
    slug, *_ = sweep_page(services).ask(*TYPED.controls(), "")
    assert slug == SLUG
    (asked,) = services.started
    assert (asked.kind, asked.max_new_tokens) == ("sweep", 32)
    assert len(asked.variants) == 1 + 4 + 2 * 3 * 4


def test_a_costly_sweep_asks_first_and_starts_when_confirmed():
    services = ready_services(tokens=4_000)
    page = sweep_page(services)
    slug, _, *_, confirm, question, offered = page.ask(*SLOW.controls(), "")
    assert (slug, services.started) == ("", [])
    assert confirm["visible"] is True
    assert question["text"].startswith("This sweep has 29 points and takes about ")
    assert question["text"].endswith("run it?")
    # One that changed since is asked about anew.
    dearer = dataclasses.replace(SLOW, budgets=SLOW.budgets + ", 777")
    slug, *_, confirm, question, again = page.start(*dearer.controls(), "", offered)
    assert (slug, services.started, confirm["visible"]) == ("", [], True)
    assert question["text"] == again != offered
    slug, *_, confirm, question, _ = page.start(*dearer.controls(), "", again)
    assert (slug, confirm["visible"], question["text"]) == (SLUG, False, "")


def test_the_line_tells_points_and_estimate_and_how_it_was_made():
    told = sweep_page(ready_services(tokens=2_000)).describe(*TYPED.controls())["text"]
    assert told.startswith("29 points on 2,000 prompt tokens: about ")
    assert "estimated from the default model's times" in told
    empty = dataclasses.replace(TYPED, context="")
    told = sweep_page(FakeServices()).describe(*empty.controls())["text"]
    assert told == "29 points. Paste a context to see what they cost."


def test_a_prompt_over_the_limit_is_refused_before_it_runs():
    services = ready_services(tokens=130, limit=100)
    _, notice, *_ = sweep_page(services).start(*TYPED.controls(), "", "")
    assert "62 over the model's limit of 100" in notice["text"]
    assert services.started == []


def test_from_fills_the_prompt_of_a_run():
    page = sweep_page(FakeServices())
    values = page.open(SimpleNamespace(query_params={"from": SLUG}))
    assert values[:2] == ["a long text", "what?"]
    assert values[-1]["text"].startswith("29 points on 4 prompt tokens or so: about ")
    *untouched, notice, _, _ = page.open(SimpleNamespace(query_params={"from": "../../etc"}))
    assert notice["tone"] == "error"
    assert len(untouched) == len(SWEEP_CONTROLS)


GRIDS = {
    "plain": TYPED,
    "generated": SLOW,
    "own settings": dataclasses.replace(
        TYPED,
        methods=("snapkv+critical:stage2=pooled", "adakv:window=16"),
        budgets="10%, 25%",
        alphas="0.125",
        bounds=True,
        generate=False,
    ),
    "no alpha": dataclasses.replace(TYPED, methods=("snapkv", "adakv")),
    "alpha by head": dataclasses.replace(TYPED, methods=("snapkv+critical_auto",)),
}


@pytest.mark.parametrize("name", GRIDS)
def test_from_fills_the_whole_grid_of_a_sweep(name):
    asked = GRIDS[name].request()
    services = FakeServices(sweep_snapshot(request=asked))
    page = sweep_page(services)
    *values, notice, _, _ = page.open(SimpleNamespace(query_params={"from": SWEEP_SLUG}))
    assert SweepForm.from_controls(values).request() == asked
    assert notice["text"].startswith("The prompt and the grid of run")


@pytest.mark.parametrize("points", [28, 1])
def test_from_says_where_a_sweep_is_no_whole_grid(points):
    asked = TYPED.request()
    asked = dataclasses.replace(asked, variants=asked.variants[:points])
    page = sweep_page(FakeServices(sweep_snapshot(request=asked)))
    *values, notice, _, _ = page.open(SimpleNamespace(query_params={"from": SWEEP_SLUG}))
    form = SweepForm.from_controls(values)
    assert form.context == TYPED.context
    assert points == 1 or form.request() == TYPED.request()
    assert "the smallest grid that holds the points" in notice["text"]


# --- following ------------------------------------------------------------------------------


def test_charts_wait_until_all_points_are_measured_and_are_sent_once():
    block = built().block
    feed = SweepFeed(block)
    partial = sweep_result()
    partial.variants[-1] = dataclasses.replace(partial.variants[-1], perturbation=None)
    now = datetime.now(UTC)
    at = [output.elem_id for output in block.outputs].index("sweep-curves")
    running = sweep_snapshot(state="running", result=partial, finished_at=None)
    waiting = feed.updates(running, now)[at]
    assert (waiting["charts"], waiting["text"][:10]) == ([], "The curves")
    first = feed.updates(sweep_snapshot(), now)
    assert len(first) == len(block.outputs) == feed.width
    names = [chart["name"] for chart in first[at]["charts"]]
    assert names[0] == "sweep-answer"  # what came out stands first
    # The full cache has no exact match of its own here.
    assert set(names) == {f"sweep-{key}" for key in figures_in("sweep") if key != "exact_match"}
    again = feed.updates(sweep_snapshot(), now)
    assert all(update == gr.skip() for update in again)


def test_the_tail_of_a_sweep_fills_every_output():
    page = sweep_page(FakeServices(sweep_snapshot()))

    async def last():
        return [updates async for updates in page.tail(SWEEP_SLUG)][-1]

    assert len(asyncio.run(last())) == len(page.block.outputs) + 2
