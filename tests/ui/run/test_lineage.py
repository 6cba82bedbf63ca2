"""Running again: the same request, told from which run it comes."""

import dataclasses
import json
from contextlib import closing
from types import SimpleNamespace

import gradio as gr
import pytest

from ckv_core.analysis.result_json import to_json
from ckv_core.request.compare_request import CompareRequest
from storage import repository
from storage.bundle_import import import_bundle
from storage.database import default_url, open_database
from storage.records import Lineage
from tests.factories.app import BAD_SLUGS, SLUG, SWEEP_SLUG, FakeServices, request, sweep_snapshot
from tests.factories.runs import done_result
from ui.compare.form_values import FormValues
from ui.results.live import made_from
from ui.run.sections import LineageSection
from ui.services.live_runs import stored_snapshot
from ui.settings import Settings
from ui.sweep.form import SweepForm
from ui.sweep.page import SweepPage


def refill(asked):
    return FormValues.from_request(asked).request()


def section(services: FakeServices) -> LineageSection:
    with gr.Blocks(analytics_enabled=False):
        return LineageSection(services)


def test_reproducing_starts_the_same_request_as_a_rerun():
    services = FakeServices()
    assert section(services).reproduce(SLUG)["started"] == SLUG
    assert services.started == [request()]
    assert services.lineages == [Lineage(SLUG, "rerun")]


def test_a_run_whose_question_is_not_known_is_not_reproduced(tmp_path):
    data = json.dumps(to_json(done_result())).encode()
    with closing(open_database(default_url(tmp_path))) as database:
        (slug,) = import_bundle(database, data).imported
        with database.read() as session:
            imported = stored_snapshot(repository.load_run(session, slug))
    services = FakeServices(imported)
    assert "does not tell the question" in section(services).reproduce(slug)["told"]
    assert services.started == []


def test_no_run_is_not_reproduced():
    services = FakeServices()
    for slug in BAD_SLUGS:
        assert "There is no run of this name" in section(services).reproduce(slug)["told"], slug
    assert services.started == []


def form_of_the_run(**changes) -> CompareRequest:
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
    [({}, "rerun"), ({"budgets": "64"}, "fork"), ({"question": "why?"}, "fork")],
)
def test_a_sweep_from_a_sweep_names_its_parent(changes, kind):
    services = FakeServices(sweep_snapshot(request=SweepForm(context="a long text").request()))
    with gr.Blocks(analytics_enabled=False):
        page = SweepPage(services, Settings.from_environ({}), models=["m"], examples=[])
    *filled, _, source, _ = page.open(SimpleNamespace(query_params={"from": SWEEP_SLUG}))
    form = dataclasses.replace(SweepForm.from_controls(filled), **changes)
    page.ask(*form.controls(), source)
    assert services.lineages == [Lineage(SWEEP_SLUG, kind)]


def test_a_sweep_of_a_comparisons_prompt_is_a_fork():
    asked = SweepForm.from_request(request()).request()
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
