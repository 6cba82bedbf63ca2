"""Kept positions in the Compare form: taken, named, refused with what was typed left alone."""

import dataclasses

import gradio as gr
import pytest

from ckv_core.errors import ConfigError
from ckv_core.results.external_selection_json import read_external_selection
from tests.factories.app import SLUG, FakeServices, request, snapshot
from tests.factories.runs import selection_file
from ui.compare.form_values import CONTROL_NAMES, FormValues, describe_variants
from ui.compare.page import ComparePage
from ui.compare_runs.differences import _differing_settings
from ui.limits import LimitError, Limits
from ui.settings import Settings

SETTINGS = Settings.from_environ({})
TYPED = FormValues(
    context="a long text", variants=("full",), own=selection_file([0, 2], "<b>Mine</b>")
)
OWN_AT = CONTROL_NAMES.index("own")


def compare_page(services: FakeServices) -> ComparePage:
    with gr.Blocks(analytics_enabled=False):
        return ComparePage(services, SETTINGS, models=[SETTINGS.model], examples=[])


def test_the_form_asks_for_the_positions_and_names_them():
    assert TYPED.request().own_indices == read_external_selection(TYPED.own)
    assert describe_variants(TYPED) == "2 variants: Full cache, <b>Mine</b>."


def test_a_request_survives_the_way_through_the_form():
    asked = TYPED.request()
    back = FormValues.from_controls(FormValues.from_request(asked).controls()).request()
    assert back == asked


def test_a_run_is_started_with_them():
    services = FakeServices()
    slug = compare_page(services).start(*TYPED.controls(), "")[0]
    assert slug == SLUG
    assert [own.label for own in services.started[0].own_indices] == ["<b>Mine</b>"]


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [("{", "not valid JSON"), (selection_file([3, 3]), "variants[0].retained: position 3")],
)
def test_wrong_positions_are_one_sentence_and_nothing_typed_changes(typed, sentence):
    services = FakeServices()
    controls = dataclasses.replace(TYPED, own=typed).controls()
    page = compare_page(services)
    slug, notice, *rest = page.start(*controls, "")
    assert slug == ""
    assert sentence in notice["text"]
    assert len(rest) == 4
    assert sentence in page.describe(*controls)["text"]
    assert services.started == []


def test_a_field_that_is_no_text_is_refused():
    controls = TYPED.controls()
    controls[OWN_AT] = {"schema": 1}
    with pytest.raises(ConfigError, match="not text"):
        FormValues.from_controls(controls)


def test_from_an_earlier_run_they_are_filled_in():
    shown = snapshot(request=request(own_indices=TYPED.request().own_indices))
    page = compare_page(FakeServices(shown))
    query = type("Request", (), {"query_params": {"from": SLUG}})()
    filled = page.open(query)[OWN_AT]
    assert read_external_selection(filled) == TYPED.request().own_indices


def test_they_count_as_variants_of_the_limit():
    with pytest.raises(LimitError, match="2 variants are too many"):
        dataclasses.replace(Limits(), variants=1).check(TYPED.request())


def test_settings_of_two_runs_differ_where_their_positions_do():
    runs = [
        snapshot(request=request(own_indices=read_external_selection(selection_file([at]))))
        for at in (0, 1)
    ]
    (row,) = (row for row in _differing_settings(runs) if row["name"] == "own_indices")
    left, right = row["values"]
    assert left != right
    assert left.startswith("Mine (")
