"""The compare form, its examples, and the handlers of its page and of a run's page."""

import base64
import dataclasses
import json
import re
import zlib
from copy import copy
from functools import cache
from types import SimpleNamespace

import gradio as gr
import pytest

from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS
from ckv_core.records.events import TokensCounted
from ckv_core.records.external_selection import MAX_TEXT_CHARS, read_external_selection
from ckv_core.records.variants import VariantSpec
from ckv_core.worker.messages import ModelStatus
from tests.factories.app import (
    BAD_SLUGS,
    SLUG,
    SWEEP_SLUG,
    FakeServices,
    request,
    running,
    snapshot,
    sweep_snapshot,
)
from tests.factories.documents import docx, pdf
from tests.factories.runs import selection_file, sweep_result
from tests.ui.served_app import Served
from ui.compare import documents
from ui.compare.documents import read_document
from ui.compare.examples import EXAMPLES_FOLDER, load_examples
from ui.compare.form import AREAS, shown_areas
from ui.compare.form_values import (
    CONTROL_NAMES,
    FormValues,
    describe_advanced,
    describe_variants,
)
from ui.compare.offers import FIRST_CHIPS, chips_offer
from ui.compare.page import ComparePage
from ui.compare.setup_link import MOST_CHARS, WRONG, _packed, form_of, setup_of
from ui.results.block import OUTPUTS
from ui.results.live import Feed, cancel_run
from ui.results.views import curves_value
from ui.run.page import RunPage
from ui.server.route_answers import IMPORT_TYPE
from ui.settings import Settings

SETTINGS = Settings.from_environ({})
TYPED = FormValues(context="a long text", question="what?")
OWN = selection_file([0, 2], "<b>Mine</b>")
NOT_THERE = "There is no run of this name"


def is_skip(update: object) -> bool:
    return isinstance(update, dict) and update.get("__type__") == "update" and len(update) == 1


@cache
def built() -> ComparePage:
    """Gradio builds a page for longer than a test asks it."""
    with gr.Blocks(analytics_enabled=False):
        return ComparePage(FakeServices(), SETTINGS, models=[SETTINGS.model], examples={})


def compare_page(services: FakeServices) -> ComparePage:
    page = copy(built())
    page._services = services
    return page


def run_page(services: FakeServices) -> RunPage:
    with gr.Blocks(analytics_enabled=False):
        return RunPage(services)


def open_request(**query: str) -> SimpleNamespace:
    return SimpleNamespace(query_params=query)


# --- form -----------------------------------------------------------------------------------


def test_the_form_asks_for_what_differs_from_the_defaults_only():
    asked = TYPED.request()
    assert (asked.budgets, asked.alphas, asked.defaults) == (("20%",), (), {})
    assert asked.variants == ("full", *FIRST_CHIPS)
    assert asked.validate()
    assert dataclasses.replace(TYPED, alpha="0.5").request().alphas == ("0.5",)
    no_alpha = dataclasses.replace(TYPED, alpha="half", variants=("snapkv+critical_auto", "adakv"))
    assert no_alpha.request().alphas == (), "a field that is not shown"


def test_a_request_survives_the_way_through_the_form():
    named = "knorm:rule=pyramid,name=Mine"
    asked = request(
        variants=("full", "snapkv:budget=9,window=4", "adakv+critical", named, "unheard:of=1"),
        budgets=("10%",),
        alphas=("0.7",),
        defaults={"sinks": "2"},
        scenario="context-only",
        analysis=("bounds",),
        follow_ups=("one?", "two?"),
        max_new_tokens=7,
        ignore_eos=True,
        time=True,
    )
    form = FormValues.from_request(asked)
    # What the run had for all, each has that takes it; what is not known stays as it is.
    own = ("snapkv:budget=9,window=4,sinks=2", "adakv+critical:sinks=2")
    assert form.variants == (*own, named, "unheard:of=1")
    known = asked.variants[:-1]
    asked = dataclasses.replace(asked, variants=known)
    back = FormValues.from_controls(FormValues.from_request(asked).controls()).request()
    assert {s.settings() for s in back.specs} == {s.settings() for s in asked.specs}
    rest = {"variants": (), "defaults": {}}
    assert dataclasses.replace(back, **rest) == dataclasses.replace(asked, **rest)


def test_without_the_full_cache_the_methods_stand_alone_and_nothing_compares():
    form = FormValues(context="a", variants=("snapkv",), reference=False, analysis=("bounds",))
    asked = form.request()
    assert (asked.variants, asked.reference, asked.analysis) == (("snapkv",), False, ())
    assert "without the full cache" in describe_advanced(form)
    assert FormValues.from_request(asked).variants == ("snapkv",)
    assert FormValues(context="a", variants=("snapkv",)).request().variants[0] == "full"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "4 methods. Add a text"),
        ({"context": "a text", "variants": ("snapkv",)}, "1 method, about "),
        ({"context": "a text", "model": "x/y"}, "with the default model on two CPU cores."),
        ({"budget": "10%, 20%"}, "8 points. Add a text"),
        ({"context": "a text", "answer": "5829"}, "CPU cores. The text does not hold the exp"),
    ],
)
def test_the_line_beside_run_counts_and_says_how_long(changes, told):
    form = dataclasses.replace(FormValues(), **changes)
    assert told in describe_variants(form)


def test_too_many_methods_are_told_with_the_limit():
    specs = tuple(f"snapkv:budget={64 + step}" for step in range(20))
    with pytest.raises(
        ConfigError, match=r"21 methods with the full cache are too many.* up to 16: take out 5"
    ):
        describe_variants(dataclasses.replace(TYPED, variants=specs))


def test_what_is_offered_covers_every_method_and_parameter():
    offer = chips_offer()
    methods = {each["name"]: each for group in offer["groups"] for each in group["methods"]}
    assert set(methods) == {each.name for each in METHODS} - {"full"}
    for name, each in methods.items():
        assert VariantSpec.parse(each["spec"]).method.name == name
        takes = {key for rows in (*each["takes"].values(), each["options"]) for key, *_ in rows}
        assert takes <= set(offer["parameters"])
        assert all(offer["parameters"][key]["help"] for key in takes)
    words = [each["word"] for each in methods["snapkv"]["versions"]]
    assert words == ["Paper", "Code", "Auto alpha"]


# What the request refuses, by a few words of a user's; the rest is the form's own.
BAD_FORMS = {
    "empty context": ({"context": "  "}, "The text is empty"),
    "lone surrogate": ({"context": "a\ud800b"}, "lone surrogate"),
    "huge context": ({"context": "x" * (MAX_TEXT_CHARS + 1)}, "the limit is 4,000,000"),
    "budget is zero": ({"budget": "0"}, "Budget '0' must be above 0"),
    "budget over 100 %": ({"budget": "120%"}, "is too large"),
    "listed twice": ({"variants": ["snapkv", "snapkv"]}, "is listed twice"),
    "alpha is a word": ({"alpha": "half"}, "alpha must be a number from 0 to 1"),
    "alpha is no text": ({"alpha": 0.5}, "not text"),
    "no model": ({"model": " "}, "Choose a model"),
    "no budget": ({"budget": " , "}, "Budget '' is not a number"),
    "variants of no kind": ({"variants": "snapkv"}, "no list of methods"),
    "half a token": ({"max_new_tokens": 1.5}, "New tokens must be a whole number from 1"),
    "context is a list": ({"context": ["a"]}, "not text"),
    "protected words elsewhere": (
        {"protect": "no such\nwords"},
        "'no such' and 'words' do not occur in the text",
    ),
    "protected from the end": ({"protect": "tokens:9-3"}, "ends before it begins"),
    "follow-ups without their scenario": ({"follow_ups": "why?"}, "need the scenario context-only"),
    "too many follow-ups": (
        {"follow_ups": "why?\n" * 9},
        "up to 8 follow-up questions, one a line",
    ),
    "budget below the window": ({"budget": "9"}, "below the 32 that are always kept"),
    "a method that is none": ({"variants": ["knorm", "snapkw"]}, "Unknown method"),
    "a parameter that is none": ({"variants": ["snapkv:window=x"]}, "window must be"),
}


def test_bad_input_gets_one_sentence_and_changes_nothing():
    services = FakeServices()
    page = compare_page(services)
    for name, (changes, sentence) in BAD_FORMS.items():
        values = dict(zip(CONTROL_NAMES, TYPED.controls(), strict=True)) | changes
        slug, notice = page.start(*values.values())
        assert sentence in notice["text"], name
        assert (notice["tone"], slug) == ("error", ""), name
        (control,) = changes
        assert notice["field"] == page.form.controls[control].elem_id, name
    assert page.describe(*values.values())[:2] == [notice, None]  # the line beside Run says it too
    assert services.started == []


def test_a_good_form_starts_one_run():
    services = FakeServices()
    page = compare_page(services)
    slug, notice = page.start(*TYPED.controls())
    assert (slug, notice["text"]) == (SLUG, "")
    assert services.started == [TYPED.request()]


def test_external_selections_of_a_run_are_said_to_be_left_out():
    asked = dataclasses.replace(TYPED.request(), own_indices=read_external_selection(OWN))
    services = FakeServices(snapshot(request=asked))
    page = compare_page(services)
    opened = page.open(open_request(**{"from": SLUG}))
    assert "External selections are left out" in opened[len(CONTROL_NAMES)]["text"]
    page.start(*opened[: len(CONTROL_NAMES)])
    assert services.started == [dataclasses.replace(asked, own_indices=())]


def test_a_context_over_the_limit_never_becomes_a_run():
    services = FakeServices()
    services.status = ModelStatus(TYPED.model, ready=True, message="ready")
    services.counted = TokensCounted(130, 130, 100)
    _, notice, *_ = compare_page(services).start(*TYPED.controls())
    assert "94 over the model's limit of 100" in notice["text"]
    assert services.started == []


def test_a_share_of_the_prompt_below_what_is_always_kept_never_becomes_a_run():
    services = FakeServices()
    services.status = ModelStatus(TYPED.model, ready=True, message="ready")
    page, form = compare_page(services), dataclasses.replace(TYPED, budget="10%")
    services.counted = TokensCounted(300, 300, 1000)
    _, notice = page.start(*form.controls())
    assert "a budget of 30 tokens is below the 32" in notice["text"]
    assert notice["field"] == page.form.controls["budget"].elem_id
    own = dataclasses.replace(TYPED, variants=("keydiff:budget=10%",), budget="128")
    services.counted = TokensCounted(300, 300, 1000, question_tokens=40)
    _, notice = page.start(*own.controls())
    assert "'keydiff:budget=10%': a budget of 30 tokens is below the 4" in notice["text"]
    assert notice["field"] == page.form.controls["variants"].elem_id
    assert services.started == []
    # What nobody has counted yet is left to the worker.
    services.status = None
    page.start(*form.controls())
    assert services.started == [form.request()]


def test_examples_are_complete_and_valid_requests():
    examples = load_examples()
    assert len(examples) >= 5
    for title, example in examples.items():
        assert len(example.validate()) > 1
        assert re.fullmatch(r"\S.*", title)  # one line
        assert len(re.findall(r"\w+", example.context)) > 600, "long enough to evict from"
        assert example.answer in example.context
    index = json.loads((EXAMPLES_FOLDER / "index.json").read_text(encoding="utf-8"))
    assert {path.name for path in EXAMPLES_FOLDER.glob("*.txt")} == {e["file"] for e in index}


# --- several budgets and alphas -------------------------------------------------------------

SEVERAL = dataclasses.replace(TYPED, budget="64, 128", alpha="0, 0.25, 0.5")
GRIDS = {
    "plain": SEVERAL,
    "own settings": dataclasses.replace(
        TYPED,
        variants=("snapkv+critical:stage2=pooled", "adakv:window=16"),
        budget="10%, 25%",
        alpha="0.125",
        analysis=("bounds",),
    ),
    "no alpha": dataclasses.replace(SEVERAL, variants=("snapkv", "adakv"), alpha="0.25"),
    "alphas alone": dataclasses.replace(
        SEVERAL, variants=("snapkv+critical:stage2=raw",), budget="10%"
    ),
}


@pytest.mark.parametrize("name", GRIDS)
def test_the_points_of_a_run_fill_the_form_that_gives_them_again(name):
    asked = GRIDS[name].request()
    page = compare_page(FakeServices(sweep_snapshot(request=asked)))
    opened = page.open(open_request(**{"from": SWEEP_SLUG}))
    again = FormValues.from_controls(opened[: len(CONTROL_NAMES)]).request()
    assert set(again.points()) == set(asked.points())
    assert dataclasses.replace(again, variants=()) == dataclasses.replace(asked, variants=())
    assert "smallest grid" not in opened[len(CONTROL_NAMES)]["text"]


def test_a_run_that_lacks_points_fills_the_smallest_grid_and_says_so():
    asked = SEVERAL.request()
    asked = dataclasses.replace(asked, places=tuple(range(len(asked.points()) - 1)))
    page = compare_page(FakeServices(sweep_snapshot(request=asked)))
    opened = page.open(open_request(**{"from": SWEEP_SLUG}))
    again = FormValues.from_controls(opened[: len(CONTROL_NAMES)]).request()
    assert set(again.points()) == set(SEVERAL.request().points())
    assert "the smallest grid that holds its points" in opened[len(CONTROL_NAMES)]["text"]


def test_charts_wait_until_all_points_are_measured_and_nothing_is_sent_twice():
    feed, now = Feed(FakeServices()), snapshot().created_at
    partial = sweep_result()
    partial.variants[-1] = dataclasses.replace(partial.variants[-1], perturbation=None)
    waiting = curves_value(sweep_snapshot(state="running", result=partial, finished_at=None))
    assert (waiting["charts"], waiting["text"][:10]) == ([], "The curves")
    (chart,) = curves_value(sweep_snapshot())["charts"]
    quantities = [value for value, _ in chart["controls"][0]["options"]]
    assert quantities[0] == "agreement"  # what came out stands first; the grid has right and wrong
    assert set(quantities) >= {"token_f1", "kl", "head"}
    assert len(feed.updates(sweep_snapshot(), now)) == len(OUTPUTS)
    assert tuple(run_page(FakeServices()).block.outputs) == OUTPUTS
    assert all(map(is_skip, feed.updates(sweep_snapshot(), now)))


# --- opening and following ------------------------------------------------------------------


TASK_AREAS = {"many_area", "task_area", "count_area"}


def test_an_address_fills_the_form():
    page = compare_page(FakeServices())
    at = len(CONTROL_NAMES)
    filled = page.open(open_request(**{"from": SLUG}))
    assert filled[CONTROL_NAMES.index("context")] == "a long text"
    task = page.open(open_request(source="task"))
    assert [task[CONTROL_NAMES.index(name)] for name in ("mode", "source")] == ["many", "task"]
    shown = [update["visible"] for update in shown_areas("many", "task")]
    assert shown == [name in TASK_AREAS for name in AREAS]
    # The line of variants is there before any event.
    assert page.form.variants_line.value["text"].startswith("4 methods. Add a text")
    assert all(map(is_skip, page.open(open_request())[:at]))


def test_an_unknown_run_is_one_sentence_on_every_page():
    services = FakeServices()
    home, run = compare_page(services), run_page(services)
    for slug in BAD_SLUGS:
        shown = run.open(open_request(id=slug))
        assert NOT_THERE in shown[2]["text"], slug
        assert all(value is None or is_skip(value) for value in shown[4:]), slug
        if slug:
            filled = home.open(open_request(**{"from": slug}))
            assert NOT_THERE in filled[len(CONTROL_NAMES)]["text"], slug


def test_a_run_that_is_over_is_shown_at_once_and_only_another_is_followed():
    followed = 3
    shown = run_page(FakeServices()).open(open_request(id=SLUG))
    assert shown[followed] == ""
    assert any(isinstance(value, dict) and "rows" in value for value in shown)
    assert run_page(FakeServices(running())).open(open_request(id=SLUG))[followed] == SLUG


def test_cancel_asks_for_known_runs_only():
    services = FakeServices()
    assert cancel_run(services, SLUG)["text"] == ""
    assert cancel_run(services, "zzz999zzz999")["tone"] == "error"
    cancel_run(services, "not a slug")
    assert services.cancelled == [SLUG]


# --- text of PDF and DOCX files, and what cannot be read of them, each in one sentence -----


def test_text_comes_out_of_both_and_what_holds_none_is_named():
    read = read_document("Report.PDF", pdf(["One", "", "Three", "", "", ""]))
    assert read == {"text": "One\n\nThree", "note": "Pages 2 and 4-6 hold no text (scans)."}
    read = read_document("a.docx", docx(["Fish &amp; chips", "Two"], pictures=2))
    assert read == {"text": "Fish & chips\n\nTwo", "note": "2 pictures are left out."}


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("a.pdf", pdf(["", ""]), "its pages are scans"),
        ("a.pdf", pdf(["One"], password="x"), "locked with a password"),
        ("a.pdf", b"%PDF-1.7 and nothing", "no whole PDF file"),
        ("a.docx", b"PK and nothing", "no whole DOCX file"),
        ("a.docx", docx([]), "holds no text"),
        ("a.docx", docx(["x"], blanks=documents.MAX_XML_BYTES), "text is too large"),
        ("a.exe", b"MZ", "Open a .pdf or .docx file"),
    ],
)
def test_what_gives_no_text_is_one_sentence(name, data, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_document(name, data)


def test_pages_that_take_too_long_are_left_out(monkeypatch):
    monkeypatch.setattr(documents, "PAGES_S", 0.0)
    text, note = documents._read_pdf(pdf(["One", "Two"]))
    assert (text, note) == ("One", "Only the first 1 of 2 pages were read.")


def test_users_get_the_text_and_strangers_nothing(app: Served):
    path, file = "/documents/text?name=a.pdf", pdf(["One"])
    with app.client("ann") as ann, app.client() as nobody:
        headers = {"Content-Type": IMPORT_TYPE}
        assert ann.post(path, content=file, headers=headers).json()["text"] == "One"
        refused = ann.post(path, content=b"no", headers=headers)
        assert (refused.status_code, "whole" in refused.json()["message"]) == (400, True)
        assert ann.post(path, content=file).status_code == 415
        assert nobody.post(path, content=file, headers=headers).status_code == 401


# --- links of setups that were not run: they come back whole, and anything else is refused ---

EXAMPLES = [FormValues.from_request(example) for example in load_examples().values()]


@pytest.mark.parametrize("form", [FormValues(), *EXAMPLES, FormValues(context="\u96ea 🙂" * 99)])
def test_a_setup_comes_back_whole(form):
    setup, has_text = setup_of(form)
    assert has_text
    assert len(setup) <= MOST_CHARS
    assert form_of(setup).controls() == form.controls()


def test_a_text_that_is_too_long_is_left_out_and_said():
    long = "".join(map(str, range(9_000)))
    form = FormValues(context=long, question="Which?", budget="5%")
    page = compare_page(FakeServices())
    value, notice = page.link_setup(*form.controls())
    assert "not in it" in notice["text"]
    back = form_of(value["setup"])
    assert (back.context, back.question, back.budget) == ("", "Which?", "5%")
    with pytest.raises(ConfigError, match="too long for a link"):
        setup_of(FormValues(protect=long))


def packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    "setup",
    [
        "AAAA",
        "\u00e9",
        setup_of(EXAMPLES[0])[0][:-9],
        packed(b"[" * 3_000_000),
        packed(b'{"context": "' + b"x" * 3_000_000 + b'"}'),
        packed(b"[]"),
        packed(b'{"context": "\xff"}'),
        _packed({"context": 5}),
        _packed({"variants": [[["x"]]], "no such control": 1}),
        _packed({"max_new_tokens": 10**9}),
        _packed({"scenario": "<b>"}),
        _packed({"dtype": "int3"}),
    ],
)
def test_what_is_no_setup_is_refused_with_one_sentence(setup):
    opened = compare_page(FakeServices()).open(open_request(setup=setup))
    assert opened[len(CONTROL_NAMES)] == {"text": WRONG, "tone": "error"}


def test_an_example_that_is_not_there_fills_in_nothing():
    page = built()
    for at in (-1, 0, "0", None):  # it was built without any
        page.fill_example(SimpleNamespace(_data={"at": at}))
