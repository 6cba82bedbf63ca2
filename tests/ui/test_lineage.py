"""Running again: the same request, told from which run it comes."""

from types import SimpleNamespace

import gradio as gr
import pytest

from storage.records import Lineage
from tests.ui.page_fakes import BAD_SLUGS, SLUG, FakeServices, request
from ui.pages.lineage import LineageSection


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
    assert section(services).open(SimpleNamespace(query_params={"id": slug})) is None
    assert services.started == []


def test_a_run_alone_has_no_relatives():
    value = section(FakeServices()).open(SimpleNamespace(query_params={"id": SLUG}))
    assert (value["parent"], value["children"]) == (None, [])
