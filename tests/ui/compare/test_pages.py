"""Handlers, routes and guards of the pages, without a server or a model."""

import asyncio
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import cache
from types import SimpleNamespace

import gradio as gr
import pytest

from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS, PARAMETERS, POLICIES
from ckv_core.request.compare_request import MAX_TEXT_CHARS
from ckv_core.worker.messages import ModelStatus, TokensCounted
from storage.records import Lineage
from tests.factories.app import BAD_SLUGS, SLUG, FakeServices, request, running, snapshot
from ui.build import build_app
from ui.compare.form import parameter_control, placeholder
from ui.compare.form_values import CONTROL_NAMES, FormValues, check_lines, describe_variants
from ui.compare.page import ComparePage
from ui.methods.cards import methods_list
from ui.methods.page import parameters_table
from ui.results.block import build_results
from ui.results.live import Feed, cancel_run
from ui.run.page import RunPage
from ui.settings import Settings

SETTINGS = Settings.from_environ({})
TYPED = FormValues(context="a long text", question="what?")


def is_skip(update: object) -> bool:
    return isinstance(update, dict) and update.get("__type__") == "update" and len(update) == 1


@cache
def built() -> ComparePage:
    """Gradio builds a page for longer than a test asks it."""
    with gr.Blocks(analytics_enabled=False):
        return ComparePage(FakeServices(), SETTINGS, models=[SETTINGS.model], examples=[])


def compare_page(services: FakeServices) -> ComparePage:
    page = copy(built())
    page._services = services
    return page


def open_request(**query: str) -> SimpleNamespace:
    return SimpleNamespace(query_params=query)


# --- form -----------------------------------------------------------------------------------


def test_the_untouched_form_asks_for_the_defaults_only():
    asked = TYPED.request()
    assert asked.defaults == {"budget": "128"}
    assert asked.variants[0] == "full"
    assert asked.validate()


def test_only_changed_parameters_are_sent():
    form = dataclasses.replace(TYPED, alpha=0.5, parameters={"window": "16", "pool": ""})
    assert form.request().defaults == {"budget": "128", "window": "16", "alpha": "0.5"}


def test_an_alpha_that_the_preset_has_anyway_is_not_sent():
    form = dataclasses.replace(TYPED, alpha=0.5, parameters={"preset": "kvpress"})
    assert form.request().defaults == {"budget": "128", "preset": "kvpress"}


def test_a_request_survives_the_way_through_the_form():
    asked = request(
        variants=("full", "snapkv:budget=9,window=4", "adakv+critical"),
        defaults={"budget": "10%", "alpha": "0.7", "sinks": "2"},
        scenario="context-only",
        max_new_tokens=7,
        ignore_eos=True,
    )
    back = FormValues.from_controls(FormValues.from_request(asked).controls()).request()
    assert {s.settings() for s in back.specs} == {s.settings() for s in asked.specs}
    assert dataclasses.replace(back, variants=()) == dataclasses.replace(asked, variants=())


def test_every_parameter_has_a_control():
    assert set(PARAMETERS) <= set(CONTROL_NAMES)


def test_the_line_of_variants_counts_and_names_them():
    form = dataclasses.replace(
        TYPED, variants=("full", "snapkv"), more_variants="snapkv:budget=64\n\n"
    )
    named = "3 variants: Full cache, snapkv:budget=128, snapkv:budget=64."
    assert describe_variants(form) == named


def test_the_line_of_variants_tells_twins_apart_by_their_specs():
    form = dataclasses.replace(
        TYPED, variants=("full",), more_variants="snapkv:pool=none\nsnapkv:pool=avg"
    )
    told = describe_variants(form)
    assert told.startswith("3 variants: Full cache, snapkv:")
    assert "pool=none" in told
    assert "pool=avg" in told


def test_too_many_variants_are_told_with_the_limit():
    lines = "\n".join(f"snapkv:budget={64 + step}" for step in range(20))
    form = dataclasses.replace(TYPED, variants=(), more_variants=lines)
    with pytest.raises(ConfigError, match=r"20 variants are too many.* up to 16: take out 4"):
        describe_variants(form)
    with pytest.raises(ConfigError, match=r"up to 12: take out 8"):
        describe_variants(form, 12)


def test_a_wrong_line_is_named_by_its_number():
    with pytest.raises(ConfigError, match=r"line 3: Unknown method 'snapkw'. Did you mean"):
        check_lines("snapkv:budget=64\n\nsnapkw")


BAD_FORMS = {
    "empty context": ({"context": "  "}, "The context is empty"),
    "lone surrogate": ({"context": "a\ud800b"}, "lone surrogate"),
    "huge context": ({"context": "x" * (MAX_TEXT_CHARS + 1)}, "the limit is 4,000,000"),
    "budget is a word": ({"budget": "many"}, "Budget 'many' is not a number"),
    "budget is zero": ({"budget": "0"}, "Budget '0' must be above 0"),
    "budget below zero": ({"budget": "-5"}, "Budget '-5' must be above 0"),
    "budget over 100 %": ({"budget": "120%"}, "over 100%"),
    "alpha out of range": ({"alpha": 1.5}, "alpha must be a number from 0 to 1"),
    "alpha is a word": ({"alpha": "half"}, "alpha must be a number from 0 to 1"),
    "alpha is no number": ({"alpha": float("nan")}, "alpha must be a number from 0 to 1"),
    "no variant": ({"variants": []}, "Choose at least one variant"),
    "variants of no kind": ({"variants": "snapkv"}, "Choose at least one variant"),
    "unknown method": ({"more_variants": "magic"}, "Unknown method 'magic'"),
    "listed twice": ({"more_variants": "snapkv"}, "is listed twice"),
    "unknown scenario": ({"scenario": "other"}, "scenario must be one of"),
    "no new tokens": ({"max_new_tokens": 0}, "New tokens must be a whole number from 1"),
    "half a token": ({"max_new_tokens": 1.5}, "New tokens must be a whole number from 1"),
    "even kernel": ({"kernel": "4"}, "kernel must be odd"),
    "context is a list": ({"context": ["a"]}, "not text"),
}


def test_bad_input_gets_one_sentence_and_changes_nothing():
    services = FakeServices()
    page = compare_page(services)
    for name, (changes, sentence) in BAD_FORMS.items():
        values = dict(zip(CONTROL_NAMES, TYPED.controls(), strict=True)) | changes
        slug, notice, *rest = page.start(*values.values(), "")
        assert sentence in notice["text"], name
        assert (notice["tone"], slug) == ("error", ""), name
        assert all(map(is_skip, rest)), name
    assert services.started == []


def test_a_good_form_starts_one_run():
    services = FakeServices()
    slug, notice, *_ = compare_page(services).start(*TYPED.controls(), "")
    assert (slug, notice["text"]) == (SLUG, "")
    assert services.started == [TYPED.request()]


def test_a_form_that_a_run_filled_in_names_its_parent():
    services = FakeServices()
    page = compare_page(services)
    page.start(*TYPED.controls(), "")
    page.start(*TYPED.controls(), SLUG)
    assert services.lineages == [None, Lineage(SLUG, "fork")]


def test_a_context_over_the_limit_never_becomes_a_run():
    services = FakeServices()
    services.status = ModelStatus(TYPED.model, ready=True, message="ready")
    services.counted = TokensCounted("", 130, 130, 100)
    _, notice, *_ = compare_page(services).start(*TYPED.controls(), "")
    assert "94 over the model's limit of 100" in notice["text"]
    assert services.started == []


# --- opening --------------------------------------------------------------------------------


def test_from_fills_the_form_without_showing_the_run():
    page = compare_page(FakeServices())
    values = page.open(open_request(**{"from": SLUG}))
    controls, slug = values[: len(CONTROL_NAMES)], values[len(CONTROL_NAMES)]
    assert controls[0] == "a long text"
    assert (slug, values[-2]) == ("", SLUG)
    assert values[-1] == page.describe(*controls)


def test_the_line_of_variants_is_there_before_any_event():
    page = compare_page(FakeServices())
    told = page.form.variants_line.value
    assert told["text"].startswith("6 variants: Full cache, ")
    assert is_skip(page.open(open_request())[-1])


def test_id_on_the_home_page_shows_the_run():
    page = compare_page(FakeServices())
    values = page.open(open_request(id=SLUG))
    assert values[len(CONTROL_NAMES)] == SLUG


def test_an_unknown_run_is_one_sentence_on_every_page():
    services = FakeServices()
    home = compare_page(services)
    with gr.Blocks(analytics_enabled=False):
        run = RunPage(services)
    for slug in BAD_SLUGS:
        shown = run.open(open_request(id=slug))
        assert "There is no run of this name" in shown[2]["text"], slug
        assert all(value is None or is_skip(value) for value in shown[4:]), slug
        if slug:
            filled = home.open(open_request(id=slug))
            assert "There is no run of this name" in filled[len(CONTROL_NAMES) + 1]["text"], slug


def test_a_run_that_is_over_is_shown_at_once_and_only_another_is_followed():
    with gr.Blocks(analytics_enabled=False):
        over, going = RunPage(FakeServices()), RunPage(FakeServices(running()))
    followed = 3
    shown = over.open(open_request(id=SLUG))
    assert shown[followed] == ""
    assert any(isinstance(value, dict) and "cards" in value for value in shown)
    assert going.open(open_request(id=SLUG))[followed] == SLUG


def test_cancel_asks_for_known_runs_only():
    services = FakeServices()
    assert cancel_run(services, SLUG)["text"] == ""
    assert cancel_run(services, "zzz999zzz999")["tone"] == "error"
    cancel_run(services, "not a slug")
    assert services.cancelled == [SLUG]


# --- following ------------------------------------------------------------------------------


def block() -> object:
    with gr.Blocks(analytics_enabled=False):
        return build_results(visible=True)


def test_a_feed_sends_charts_once_and_only_when_all_is_measured():
    built = block()
    feed = Feed(built)
    now = snapshot().created_at
    half = snapshot().result
    half.variants[2] = dataclasses.replace(half.variants[2], perturbation=None)
    at = [component.elem_id for component in built.outputs].index("charts")
    first = feed.updates(running(result=half), now)
    assert len(first) == len(built.outputs)
    assert first[at]["charts"] == []
    drawn = feed.updates(snapshot(), now)[at]
    assert [chart["name"] for chart in drawn["charts"]] == ["layers", "final", "heads", "budgets"]
    assert is_skip(feed.updates(snapshot(), now)[at])


def test_a_feed_leaves_out_what_did_not_change():
    feed = Feed(block())
    now = snapshot().created_at
    feed.updates(snapshot(), now)
    assert all(map(is_skip, feed.updates(snapshot(), now)))


def collect(generator) -> list:
    async def run() -> list:
        return [item async for item in generator]

    # A thread of its own: browser tests may leave an event loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(run())).result()


def test_the_tail_turns_the_buttons_with_the_state():
    services = FakeServices()
    services.steps = [running(), snapshot()]
    page = compare_page(services)
    first, last = collect(page.tail(SLUG))
    assert [update["interactive"] for update in first[-2:]] == [False, True]
    assert [update["interactive"] for update in last[-2:]] == [True, False]


def test_the_tail_of_no_run_changes_nothing():
    page = compare_page(FakeServices())
    (updates,) = collect(page.tail(""))
    assert len(updates) == len(page.block.outputs) + 2
    assert all(map(is_skip, updates))


# --- methods page ---------------------------------------------------------------------------


def test_the_methods_page_names_every_method_and_parameter():
    page, table = methods_list(), parameters_table()
    assert all(f'id="method-{each.name}"' in page for each in METHODS)
    assert all(f'href="methods#method-{each.name}"' in page for each in METHODS)
    assert all(f"<code>{name}</code>" in table for name in PARAMETERS)


def test_a_card_says_what_is_protected_needed_and_fit_as_the_parts_declare_it():
    cards = {card.partition('"')[0]: card for card in methods_list().split('id="method-')[1:]}
    assert "<dd>window 32</dd>" in cards["snapkv"]
    assert "<code>window=32</code> (kvpress 64)" in cards["snapkv"]
    assert "attention of the last 32 queries" in cards["snapkv"]
    assert "<code>snapkv+critical</code>" in cards["snapkv"]
    assert "no: it has no attention score" in cards["keydiff"]
    assert "<dd>the cache alone</dd>" in cards["keydiff"]
    assert "accumulated attention, gathered while the prompt is read" in cards["h2o"]
    assert "work after every step" in cards["h2o"]
    assert not any("(&#x27;" in card for card in cards.values())


def test_an_empty_field_of_an_optional_part_says_that_it_is_left_out(monkeypatch):
    store = parameter_control(PARAMETERS["store"])
    assert store.choices[0] == ("default (plain)", "")
    assert store.info == PARAMETERS["store"].help
    monkeypatch.setitem(POLICIES, "window", None)
    assert placeholder(PARAMETERS["window"], "paper") == "off"


# --- the whole app --------------------------------------------------------------------------


@pytest.mark.slow
def test_no_handler_keeps_state_in_the_browser_session():
    app = build_app(FakeServices(), SETTINGS)
    kinds = {type(component) for component in app.blocks.values()}
    assert gr.State not in kinds
    targets = [target for fn in app.fns.values() for target in fn.targets]
    assert not [target for target in targets if target[1] == "unload"]
