"""Running again: the same request, told from which run it comes."""

import dataclasses
from types import SimpleNamespace

import gradio as gr
import pytest

from ckv_core.config import CompareRequest
from storage.records import Lineage
from tests.ui.page_fakes import BAD_SLUGS, SLUG, FakeServices, request
from tests.ui.sweep_fakes import SWEEP_SLUG, sweep_snapshot
from ui.forms import FormValues
from ui.pages.lineage import LineageSection, made_from
from ui.pages.sweep import SweepPage
from ui.settings import Settings
from ui.sweep_forms import SweepForm


def section(services: FakeServices) -> LineageSection:
    with gr.Blocks(analytics_enabled=False):
        return LineageSection(services)


def test_reproducing_starts_the_same_request_as_a_rerun():
    services = FakeServices()
    assert section(services).reproduce(SLUG)["started"] == SLUG
    assert services.started == [request()]
    assert services.lineages == [Lineage(SLUG, "rerun")]


@pytest.mark.parametrize("slug", BAD_SLUGS)
def test_no_run_is_not_reproduced(slug):
    services = FakeServices()
    assert "There is no run of this name" in section(services).reproduce(slug)["told"]
    assert services.started == []


def form_of_the_run(**changes) -> CompareRequest:
    form = FormValues.from_request(request())
    return dataclasses.replace(form, **changes).request()


def test_a_form_filled_in_from_a_run_makes_a_rerun_and_with_changes_a_fork():
    services = FakeServices()
    assert made_from(services, SLUG, form_of_the_run()) == Lineage(SLUG, "rerun")
    for changes in ({"budget": "5"}, {"question": "why?"}, {"max_new_tokens": 9}):
        assert made_from(services, SLUG, form_of_the_run(**changes)) == Lineage(SLUG, "fork")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [({}, "rerun"), ({"budgets": "64"}, "fork"), ({"question": "why?"}, "fork")],
)
def test_a_sweep_from_a_sweep_names_its_parent(changes, kind):
    services = FakeServices(sweep_snapshot(request=SweepForm(context="a long text").request()))
    with gr.Blocks(analytics_enabled=False):
        page = SweepPage(services, Settings.from_environ({}), models=["m"], examples=[])
    *filled, _, source = page.open(SimpleNamespace(query_params={"from": SWEEP_SLUG}))
    form = dataclasses.replace(SweepForm.from_controls(filled), **changes)
    page.start(*form.controls(), source)
    assert services.lineages == [Lineage(SWEEP_SLUG, kind)]


def test_a_sweep_of_a_comparisons_prompt_is_a_fork():
    asked = SweepForm.from_request(request()).request()
    assert made_from(FakeServices(), SLUG, asked) == Lineage(SLUG, "fork")


@pytest.mark.parametrize("source", [*BAD_SLUGS, None, 3, ["x"]])
def test_a_form_filled_in_by_hand_has_no_parent(source):
    assert made_from(FakeServices(), source, form_of_the_run()) is None


def test_a_guest_is_told_to_be_one_and_nothing_else():
    services = FakeServices()
    services.is_guest = True
    (value,) = section(services).open(SLUG)
    assert value == {"guest": True}


def test_a_run_alone_has_no_relatives():
    (value,) = section(FakeServices()).open(SLUG)
    assert (value["parent"], value["children"]) == (None, [])
