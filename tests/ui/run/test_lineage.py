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
        page = ComparePage(services, Settings.from_environ({}), models=["m"], examples={})
    for slug, lacks in ((SLUG, False), (SWEEP_SLUG, True)):
        told = page.open(SimpleNamespace(query_params={"from": slug}))[len(CONTROL_NAMES)]
        assert "run the same again" in told["text"]
        assert ("type it below" in told["text"]) == lacks


def form_of_the_run(**changes) -> RunRequest:
    form = FormValues.from_request(request())
    return dataclasses.replace(form, **changes).request()


def several_budgets(**changes) -> RunRequest:
    form = FormValues(context="a long text", budget="64, 128", alpha="0, 0.5")
    return dataclasses.replace(FormValues.from_request(form.request()), **changes).request()


@pytest.mark.parametrize(
    ("slug", "asked", "kind"),
    [
        (SLUG, form_of_the_run(), "rerun"),
        (SLUG, form_of_the_run(budget="5"), "fork"),
        (SLUG, form_of_the_run(question="why?"), "fork"),
        (SLUG, form_of_the_run(max_new_tokens=9), "fork"),
        (SLUG, form_of_the_run(budget="64, 128"), "fork"),
        (SWEEP_SLUG, several_budgets(), "rerun"),
        (SWEEP_SLUG, several_budgets(budget="64, 99"), "fork"),
        (SWEEP_SLUG, several_budgets(question="why?"), "fork"),
    ],
)
def test_a_form_filled_in_from_a_run_makes_a_rerun_and_with_changes_a_fork(slug, asked, kind):
    services = FakeServices(snapshot(), sweep_snapshot(request=several_budgets()))
    assert made_from(services, slug, asked, refill) == Lineage(slug, kind)


@pytest.mark.parametrize("source", [*BAD_SLUGS, None, 3, ["x"]])
def test_a_form_filled_in_by_hand_has_no_parent(source):
    assert made_from(FakeServices(), source, form_of_the_run(), refill) is None


def test_a_guest_is_told_to_be_one_and_anybody_else_of_the_relatives():
    services = FakeServices()
    (value,) = section(services).open(SLUG)
    assert (value["parent"], value["children"]) == (None, [])
    services.is_guest = True
    assert section(services).open(SLUG) == [{"guest": True}]
