"""The Runs page's handlers: any address shows a view, any event gets one sentence."""

import json
import zipfile
from copy import copy
from datetime import UTC, datetime
from functools import cache
from io import BytesIO
from types import SimpleNamespace

import gradio as gr
import pytest

from ckv_core.records.codec import to_json
from storage.bundle import entry_name
from storage.records import RunFilter
from tests.factories.app import SLUG, FakeServices, finished
from tests.ui.served_app import by
from ui.runs.page import RunsPage
from ui.runs.query import read_query
from ui.server.route_answers import IMPORT_TYPE


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
        {"text": " harbour ", "method": "snapkv", "until": "2026-03-01"}
        | {"sort": "title", "page": "2"}
    )
    assert query.wanted == RunFilter(
        text="harbour",
        method="snapkv",
        until=datetime(2026, 3, 2, tzinfo=UTC),
    )
    assert (query.sort, query.page, query.notice) == ("title", 2, "")
    assert read_query({"until": "9999-12-31"}).notice == "", "there is no day after it"
    no_database_takes = {"model": "\x00", "text": "a\x00b\ud800"}
    assert read_query(no_database_takes).wanted == RunFilter(text="ab")


@pytest.mark.parametrize("bad", ["x", "-1", "1e3", "9" * 400, "\u0663", "2026-13-01", "<b>"])
def test_what_cannot_be_read_is_left_out_and_told(bad):
    query = read_query({"until": bad, "since": bad, "sort": bad})
    assert query.wanted == RunFilter()
    assert query.notice == "Left out, because it cannot be read: until, since."


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
    act(page, action="edit", slugs=[SLUG], title="T", note="<b>")
    assert services.library.called == [("annotate", SLUG, "T", "<b>")]


# --- import and export of the list of runs over HTTP: whose runs, which files, which requests ---

TYPE = {"content-type": IMPORT_TYPE}


def made(app, user: str) -> str:
    with by(user):
        slug = finished(app.services, "steps 1")
        app.services.library.annotate(slug, "A title", "My secret note")
    return slug


def titles(app, user: str) -> list[str]:
    with by(user):
        return [run.title for run in app.services.library.list_runs()[0]]


def test_exported_runs_are_imported_by_another_user_with_their_notes(app):
    slugs, before = [made(app, "ann"), made(app, "ann")], titles(app, "bob")
    with app.client("ann") as ann, app.client("bob") as bob:
        bundle = ann.get("/runs/export", params={"ids": ",".join(slugs)})
        assert 'filename="ckv-2-runs.zip"' in bundle.headers["content-disposition"]
        answer = bob.post("/runs/import", content=bundle.content, headers=TYPE)
        assert answer.status_code == 200
        assert answer.json()["message"].startswith("Imported 2 of 2 runs; other runs have the same")
        again = bob.post("/runs/import", content=bundle.content, headers=TYPE).json()
        assert len(again["imported"]) == 2, "names of ann's runs are taken, so these are new again"
    assert sorted(titles(app, "bob")) == sorted(["A title"] * 4 + before)


def test_a_result_file_is_imported_once(app):
    with by("ann"):
        slug = finished(app.services, "steps 2")
        data = json.dumps(to_json(app.services.snapshot(slug).result))
    with app.client("bob") as bob:
        first = bob.post("/runs/import", content=data, headers=TYPE).json()
        assert (first["message"], len(first["imported"])) == ("Imported 1 of 1 run.", 1)
        second = bob.post("/runs/import", content=data, headers=TYPE).json()
        assert second["message"] == f"Imported 0 of 1 run; already here: {first['imported'][0]}."


@pytest.mark.parametrize("data", [b"", b"PK", b"{}", b"<script>", b"\x00" * 1000])
def test_a_wrong_file_is_one_sentence_and_stores_nothing(app, data):
    before = titles(app, "bob")
    with app.client("bob") as bob:
        answer = bob.post("/runs/import", content=data, headers=TYPE)
    assert answer.status_code == 400
    assert "refused, nothing was imported" in answer.json()["message"]
    assert titles(app, "bob") == before


@pytest.mark.parametrize("headers", [{}, {"content-type": "multipart/form-data; boundary=x"}])
def test_what_a_form_of_another_site_could_send_is_refused(app, headers):
    with app.client("bob") as bob:
        assert bob.post("/runs/import", content=b"PK", headers=headers).status_code == 415


def test_an_export_is_for_the_owner_of_every_run(app):
    own, other = made(app, "bob"), made(app, "ann")
    with app.client("bob") as bob:
        for ids in (f"{own},{other}", other, "zzz999zzz999"):
            answer = bob.get("/runs/export", params={"ids": ids})
            assert answer.status_code == 400
            assert "There is no run" in answer.json()["message"]
        for ids in ("", "../x", ",".join([own] * 101)):
            assert "Choose" in bob.get("/runs/export", params={"ids": ids}).json()["message"]
        assert bob.get("/runs/export", params={"ids": own}).status_code == 200


def test_a_share_link_gives_the_run_without_the_owners_notes(app):
    slug = made(app, "ann")
    with by("ann"):
        token = app.services.shares.create(slug, "1 day")
    with app.client(cookies={f"ckv_share_{slug}": token}) as guest:
        answer = guest.get(f"/data/{slug}/bundle.zip")
        assert guest.get("/runs/export", params={"ids": slug}).status_code == 401
        assert guest.post("/runs/import", content=answer.content, headers=TYPE).status_code == 401
    with zipfile.ZipFile(BytesIO(answer.content)) as archive:
        text = archive.read(entry_name(slug)).decode()
    assert "w0" in text
    assert "secret" not in text
    with app.client("ann") as ann:
        own = ann.get(f"/data/{slug}/bundle.zip").content
    assert b"secret" in zipfile.ZipFile(BytesIO(own)).read(entry_name(slug))
