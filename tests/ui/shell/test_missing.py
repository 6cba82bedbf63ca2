"""Addresses that show nothing: a page for readers, the plain answer for programs."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.factories.app import FakeServices
from ui.accounts.turns import OverError
from ui.run.routes import build_routes
from ui.server.route_answers import NO_RUN, MissingError
from ui.shell.plain_pages import NO_PAGE, REFUSALS, BusyPages

READER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
HOSTILE = "<script>alert(1)</script> & co"


def client() -> TestClient:
    def hostile(_: Request) -> Response:
        raise MissingError(HOSTILE)

    def late(_: Request) -> Response:
        raise OverError(f"That took too long. {HOSTILE}")

    app = Starlette(
        routes=[
            *build_routes(FakeServices()),
            Route("/hostile", hostile),
            Route("/api/hostile", hostile),
            Route("/late", late),
            Route("/there", lambda _: PlainTextResponse("there")),
        ],
        exception_handlers=REFUSALS,
    )
    return TestClient(BusyPages(app))


@pytest.mark.parametrize(
    ("path", "sentence"), [("/nope", NO_PAGE), ("/r/BAD", NO_RUN), ("/data/x/table.csv", NO_RUN)]
)
def test_a_reader_gets_a_sentence_and_where_to_go(path, sentence):
    answer = client().get(path, headers=READER)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert sentence in answer.text
    assert '<a href="/runs">' in answer.text
    assert '<a href="/">' in answer.text
    assert "nope" not in answer.text


def test_what_an_answer_says_is_no_markup():
    text = client().get("/hostile", headers=READER).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in text
    assert HOSTILE not in text


def test_programs_get_what_they_got():
    assert client().get("/nope").json() == {"detail": "Not Found"}
    assert client().get("/r/BAD").text == NO_RUN
    assert client().get("/api/hostile", headers=READER).text == HOSTILE


def test_work_that_was_ended_may_be_asked_for_again():
    answer = client().get("/late")
    assert (answer.status_code, answer.text) == (503, f"That took too long. {HOSTILE}\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    page = client().get("/late", headers=READER)
    assert "That took too long. &lt;script&gt;" in page.text
    assert '<a href="">Try again</a>' in page.text
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert len(page.content) == int(page.headers["content-length"])
    for each in (answer, page):
        assert (each.status_code, each.headers["retry-after"]) == (503, "5")


def test_what_is_there_stays_as_it_is():
    answer = client().get("/there", headers=READER)
    assert (answer.status_code, answer.text) == (200, "there")
