"""The Runs page's handlers: any address shows a view, any event gets one sentence."""

from copy import copy
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace

import gradio as gr
import pytest

from storage.records import RunFilter
from tests.factories.app import SLUG, FakeServices
from ui.runs.page import RunsPage
from ui.runs.query import read_query


@cache
def built() -> RunsPage:
    """Gradio builds a page for longer than a test asks it."""
    with gr.Blocks(analytics_enabled=False):
        return RunsPage(FakeServices(), import_mib=3)


def runs_page(services: FakeServices) -> RunsPage:
    page = copy(built())
    page._library = services.library
    return page


def act(page: RunsPage, **data) -> dict:
    return page.act(gr.EventData(None, data))


@pytest.mark.parametrize("asked", ["1", "0", "-3", "99", "x", "9" * 50, "\u0663"])
def test_any_page_number_shows_a_page(asked):
    value = runs_page(FakeServices()).open(SimpleNamespace(query_params={"page": asked}))
    assert (value["page"], value["pages"], len(value["rows"])) == (1, 1, 1)


def test_an_address_names_search_filters_and_sort():
    query = read_query(
        {"text": " harbour ", "method": "snapkv", "min_budget": "64", "until": "2026-03-01"}
        | {"tag": "good", "pinned": "1", "sort": "title", "page": "2"}
    )
    assert query.wanted == RunFilter(
        text="harbour",
        method="snapkv",
        min_budget=64,
        until=datetime(2026, 3, 2, tzinfo=UTC),
        tag="good",
        pinned=True,
    )
    assert (query.sort, query.page, query.notice) == ("title", 2, "")
    assert read_query({"until": "9999-12-31"}).notice == "", "there is no day after it"
    no_database_takes = {"tag": "\x00", "text": "a\x00b\ud800"}
    assert read_query(no_database_takes).wanted == RunFilter(text="ab")


@pytest.mark.parametrize("bad", ["x", "-1", "1e3", "9" * 400, "\u0663", "2026-13-01", "<b>"])
def test_what_cannot_be_read_is_left_out_and_told(bad):
    query = read_query({"max_budget": bad, "since": bad, "sort": bad})
    assert query.wanted == RunFilter()
    assert query.notice == "Left out, because it cannot be read: max budget, since."


def test_a_deleted_run_comes_back_by_undo():
    services = FakeServices()
    page = runs_page(services)
    value = act(page, action="delete", slugs=[SLUG], query="?sort=title")
    assert (value["rows"], value["undo"]) == ([], [SLUG])
    assert "undo works for 10 minutes" in value["message"]
    assert services.library.asked[-1][1] == "title"
    value = act(page, action="undo", slugs=value["undo"])
    assert ([row["slug"] for row in value["rows"]], value["undo"]) == ([SLUG], [])


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"action": "delete"},
        {"action": "delete", "slugs": "abc123def456"},
        {"action": "delete", "slugs": [["x"], None, "../x"]},
        {"action": "delete", "slugs": ["zzz999zzz999"]},
        {"action": "drop", "slugs": [SLUG]},
        {"action": "delete", "slugs": [SLUG] * 101},
        {"action": ["delete"], "slugs": [SLUG], "query": {"a": 1}},
        "text",
        None,
        3,
        [],
    ],
)
def test_a_wrong_event_is_one_sentence_and_changes_nothing(data):
    services = FakeServices()
    value = runs_page(services).act(gr.EventData(None, data))
    assert value["tone"] == "error"
    assert value["message"].endswith(".")
    assert list(services.runs) == [SLUG]
    assert services.library.called == []


def test_edits_reach_the_library_as_text():
    services = FakeServices()
    page = runs_page(services)
    act(page, action="edit", slugs=[SLUG], title="T", note="<b>", tags=" one  two ")
    act(page, action="tag", slugs=[SLUG], tag=" good ")
    act(page, action="pin", slugs=[SLUG], pinned=True)
    assert services.library.called == [
        ("annotate", SLUG, "T", "<b>", ["one", "two"]),
        ("add_tag", [SLUG], "good"),
        ("set_pinned", SLUG, True),
    ]
