"""The Methods page: all methods and parameters, formulas as written, what the parts declare."""

import html
import json
import re
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest
from playwright.sync_api import expect

from ckv_core.experiment.plan import Setting, plan
from ckv_core.methods import METHODS, PARAMETERS
from ckv_core.models.catalog import KNOWN
from ckv_core.records.variants import VariantSpec
from tests.e2e.steps import DESK, PHONE, expect_well_made, expect_well_made_everywhere
from ui.methods.capacity import Capacity
from ui.methods.cards import FORMULAS, methods_list, parameters_table

WRITTEN: dict[str, str] = json.loads(
    (Path(__file__).parents[3] / "ui" / "methods" / "formulas.json").read_text("utf-8")
)


def test_the_methods_page_names_every_method_and_parameter():
    page, table = methods_list(), parameters_table()
    assert all(f'id="method-{each.name}"' in page for each in METHODS)
    # A server's cell has its reason, and methods of a row have all of them in common.
    body = page.partition("ckv-served")[2]
    shown = re.findall(r'<tr><th scope="row">(.*?)</th>', body)
    assert sorted(", ".join(shown).split(", ")) == sorted(each.label for each in METHODS)
    assert body.count("<td title=") == 6 * len(shown)
    assert len(re.findall(r'id="reason-\d+"', body)) == len(set(re.findall(r"#reason-(\d+)", body)))
    assert all(f"<code>{name}</code>" in table for name in PARAMETERS)


def test_a_card_says_what_is_protected_needed_and_fit_as_the_parts_declare_it():
    cards = {card.partition('"')[0]: card for card in methods_list().split('id="method-')[1:]}
    assert "<dd>window 32</dd>" in cards["snapkv"]
    assert "<code>window=32</code> (kvpress 64)" in cards["snapkv"]
    assert "attention of the last 32 queries" in cards["snapkv"]
    assert "<code>snapkv+critical</code>" in cards["snapkv"]
    assert "no: it has no attention score" in cards["keydiff"]
    assert "<dd>the cache alone</dd>" in cards["keydiff"]
    assert "accumulated attention while the prompt is read" in cards["h2o"]
    assert "work after every step" in cards["h2o"]
    assert not any("(&#39;" in card for card in cards.values())


def test_every_method_has_its_formula_rendered_as_it_is_written():
    assert WRITTEN.keys() == FORMULAS.keys() == {m.name for m in METHODS if m.evicts}
    for name, mathml in FORMULAS.items():
        source = re.search(r"<annotation[^>]*>(.*)</annotation>", mathml, re.DOTALL)
        assert source is not None
        assert html.unescape(source[1]) == WRITTEN[name]


def test_every_method_has_notes_and_says_what_memory_it_takes():
    cards = re.findall(r'id="method-(\w+)"(.*?)</details>', methods_list(), re.DOTALL)
    facts = {
        name: dict(re.findall(r"<dt>([^<]+)</dt><dd>(.*?)</dd>", card)) for name, card in cards
    }
    assert sorted(facts) == sorted(method.name for method in METHODS)
    notes = {name: told["Notes"] for name, told in facts.items()}
    assert [name for name, told in notes.items() if len(told.split()) <= 12] == []
    assert all(told["Extra memory"] for told in facts.values())
    assert "tiles of 128" in notes["compactor"]
    # Of a method without a file of its own, from that of its scorer.
    assert notes["layer_defensivekv"] == notes["defensivekv"]


@pytest.fixture(scope="module")
def form():
    with gr.Blocks():
        return Capacity()


def computed(form, **changes):
    """(sentence, rows by label) of the form's first values with some changed."""
    values = {name: part.value for name, part in form.inputs.items()} | changes
    notice, table, equal, link = form.compute(*values.values())
    if notice["text"]:
        return notice, {}
    assert equal is None or link["links"][0][1].startswith("/?setup=")
    rows = [row["cells"] for row in table["rows"]]
    return notice, {row["spec"]["text"]: row for row in rows}


def test_the_plan_on_the_page_is_that_of_the_command_line(form):
    _, rows = computed(form, store="int4", variants=["snapkv", "adakv:store=int8", "full"])
    assert [*rows] == ["full", "snapkv:budget=10%,store=int4", "adakv:budget=10%,store=int8"]
    setting = Setting(memory=80 * 2**30, prompt=131_072)
    specs = [VariantSpec.parse(spec) for spec in rows]
    expected = plan(KNOWN["meta-llama/Llama-3.1-8B-Instruct"], setting, specs)
    assert [row["requests"]["value"] for row in rows.values()] == [r.requests for r in expected]


def test_a_link_fills_in_the_plan_and_whatever_else_comes_is_a_sentence(form):
    query = {"model": "Qwen/Qwen3-8B", "prompt": "512", "variants": "snapkv:budget=64;full"}
    model, prompt, variants, _ = form.open(SimpleNamespace(query_params=query))
    notice, rows = computed(form, model=model, prompt=prompt, variants=variants)
    assert notice["text"] == ""
    assert [*rows] == ["full", "snapkv:budget=64"]
    assert form.open(SimpleNamespace(query_params={"prompt": "9" * 99 + "x"}))[1] == gr.skip()
    for name, value, field in (
        ("memory", "lots", "plan-memory"),
        ("bandwidth", "0.1B", "plan-bandwidth"),
        ("memory", {"a": 1}, "plan-memory"),
        ("prompt", -1, "plan-prompt"),
        ("prompt", 1e300, "plan-prompt"),
        ("output", float("nan"), "plan-output"),
        ("dtype", None, "plan-dtype"),
        ("model", "/etc", "plan-model"),
        ("config", "[" * 9_999, "plan-config"),
        ("variants", ["snapkv"] * 99, "plan-variants"),
        ("variants", [["snapkv"]], "plan-variants"),
        ("budget", "7", "plan-budget"),
        ("layout", "page:1", "plan-layout"),
    ):
        notice, _ = computed(form, **{name: value})
        assert notice["tone"] == "error"
        assert notice.get("field") == field, notice


def test_formulas_are_drawn_and_the_page_is_well_made_in_light_and_dark(browser, open_app):
    page = browser.new_page(viewport=DESK)
    page.goto(f"{open_app.url}/methods?__theme=light")
    formulas = page.locator(".ckv-formula math")
    formulas.first.wait_for(state="attached")
    page.locator("#capacity-table tbody tr").first.wait_for()
    # As it is opened first it can be read in a few screens; the list takes little over one.
    assert page.evaluate("document.documentElement.scrollHeight") < 5.5 * DESK["height"]
    expect_well_made(page)
    page.locator("details").evaluate_all("all => all.forEach((e) => { e.open = true; })")
    for width in (1440, 430):
        page.set_viewport_size({"width": width, "height": 900})
        heights = formulas.evaluate_all("all => all.map((e) => e.getBoundingClientRect().height)")
        assert len(heights) == len(FORMULAS)
        assert min(heights) > 10
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    names = page.locator("[id^=method-]").evaluate_all("all => all.map((e) => e.id)")
    assert len({*names}) == len(names) == len([*METHODS])
    # One card of each class stands for all, which have the same parts: axe takes long on each.
    page.locator(".ckv-method ~ .ckv-method").evaluate_all("all => all.forEach((e) => e.remove())")
    expect_well_made_everywhere(page)
    page.close()


def test_figures_show_what_is_kept_at_the_budget_that_is_chosen_by_key(browser, open_app):
    page = browser.new_page(viewport=PHONE)
    page.goto(f"{open_app.url}/methods")
    figures = page.locator(".ckv-kept")
    expect(figures).to_have_count(len([each for each in METHODS if each.evicts]))
    knorm = page.locator("#method-knorm .ckv-kept")
    page.locator("#method-knorm summary").click()
    expect(knorm.locator("path")).to_have_count(3)
    expect(knorm).to_contain_text("Knorm at 10 % (")
    before = knorm.locator(".ckv-kept-above").get_attribute("d")
    page.get_by_role("radio", name="10 %").focus()
    page.keyboard.press("ArrowRight")
    expect(knorm).to_contain_text("Knorm at 20 % (")
    expect(knorm).to_contain_text("of its entries are SnapKV's too")
    assert knorm.locator(".ckv-kept-above").get_attribute("d") != before
    # Beside itself nothing is drawn.
    expect(page.locator("#method-snapkv .ckv-kept path")).to_have_count(2)
    page.close()
