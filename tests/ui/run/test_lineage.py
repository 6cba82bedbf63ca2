"""Running again: the same request, told from which run it comes."""

import dataclasses
from types import SimpleNamespace

import gradio as gr
import pytest

from ckv_core.records.run_request import RunRequest
from storage.bundle import FROM_RESULT
from storage.records import Lineage
from tests.factories.app import (
    BAD_SLUGS,
    SLUG,
    SWEEP_SLUG,
    FakeServices,
    request,
    snapshot,
    sweep_snapshot,
)
from ui.compare.form_values import CONTROL_NAMES, FormValues
from ui.compare.page import ComparePage
from ui.results.live import made_from
from ui.run.page import LineageSection
from ui.settings import Settings


def refill(asked):
    return FormValues.from_request(asked).request()


def section(services: FakeServices) -> LineageSection:
    with gr.Blocks(analytics_enabled=False):
        return LineageSection(services)


def test_a_run_from_a_result_file_fills_the_form_and_says_that_the_question_lacks():
    services = FakeServices(snapshot(), imported := snapshot(slug=SWEEP_SLUG))
    imported.result.environment["imported"] = f"2026-01-02 from {FROM_RESULT}"
    with gr.Blocks(analytics_enabled=False):
        page = ComparePage(services, Settings.from_environ({}), models=["m"], examples=[])
    for slug, lacks in ((SLUG, False), (SWEEP_SLUG, True)):
        told = page.open(SimpleNamespace(query_params={"from": slug}))[len(CONTROL_NAMES)]
        assert "run the same again" in told["text"]
        assert ("type it below" in told["text"]) == lacks


def form_of_the_run(**changes) -> RunRequest:
    form = FormValues.from_request(request())
    return dataclasses.replace(form, **changes).request()


def test_a_form_filled_in_from_a_run_makes_a_rerun_and_with_changes_a_fork():
    services = FakeServices()
    assert made_from(services, SLUG, form_of_the_run(), refill) == Lineage(SLUG, "rerun")
    for changes in ({"budget": "5"}, {"question": "why?"}, {"max_new_tokens": 9}):
        made = made_from(services, SLUG, form_of_the_run(**changes), refill)
        assert made == Lineage(SLUG, "fork")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [({}, "rerun"), ({"budget": "64, 99"}, "fork"), ({"question": "why?"}, "fork")],
)
def test_several_budgets_from_several_name_their_parent(changes, kind):
    form = FormValues(context="a long text", budget="64, 128", alpha="0, 0.5")
    services = FakeServices(sweep_snapshot(request=form.request()))
    form = dataclasses.replace(FormValues.from_request(form.request()), **changes)
    assert made_from(services, SWEEP_SLUG, form.request(), refill) == Lineage(SWEEP_SLUG, kind)


def test_several_budgets_of_a_comparisons_prompt_are_a_fork():
    asked = form_of_the_run(budget="64, 128")
    assert made_from(FakeServices(), SLUG, asked, refill) == Lineage(SLUG, "fork")


@pytest.mark.parametrize("source", [*BAD_SLUGS, None, 3, ["x"]])
def test_a_form_filled_in_by_hand_has_no_parent(source):
    assert made_from(FakeServices(), source, form_of_the_run(), refill) is None


def test_a_guest_is_told_to_be_one_and_anybody_else_of_the_relatives():
    services = FakeServices()
    (value,) = section(services).open(SLUG)
    assert (value["parent"], value["children"]) == (None, [])
    services.is_guest = True
    assert section(services).open(SLUG) == [{"guest": True}]
