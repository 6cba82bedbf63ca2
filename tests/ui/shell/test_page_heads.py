"""The head of each page: its title, what a link preview says, and a 404 for a run not there."""

import re
from html.parser import HTMLParser

import httpx
import pytest

from tests.factories.app import request, store_run
from tests.factories.runs import done_result
from tests.ui.served_app import by
from ui.shell.header import PAGES as IN_THE_BAR
from ui.shell.page_heads import PAGES

SECRET = 'Who </title><script>alert("x")</script> hides?'


class Head(HTMLParser):
    """Title and meta tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.metas: dict[str, list[str]] = {}
        self.titles: list[str] = []
        self._in_title = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "meta" and (name := found.get("property") or found.get("name")):
            self.metas.setdefault(name, []).append(found.get("content") or "")
        self._in_title = tag == "title"

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.titles.append(data)


@pytest.fixture(scope="module")
def slug(app) -> str:
    return store_run(app.services, request(question=SECRET), done_result(), owner="ann")


def head(client: httpx.Client, path: str) -> Head:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["content-length"]) == len(answer.content)
    return Head(answer.text)


def test_every_page_has_a_title_and_a_preview_of_its_own(app):
    assert {path.strip("/") for path in IN_THE_BAR} <= set(PAGES)
    with app.client("ann") as client:
        heads = {page: head(client, f"/{page}") for page in PAGES}
    for page, found in heads.items():
        assert found.titles == found.metas["og:title"] == [f"{PAGES[page][0]} - CriticalKV Lab"]
        assert found.metas["og:url"] == [f"{app.url}/{page}"]
        assert "Gradio" not in str(found.metas)
        assert not any(name.startswith("og:image") for name in found.metas)
    assert len({str(found.metas["og:description"]) for found in heads.values()}) == len(PAGES)


def test_a_runs_preview_has_none_of_its_text(app, slug):
    with app.client("ann") as client:
        found = head(client, f"/run?id={slug}&__theme=dark")
    assert found.titles == [f"Run {slug}: 3 variants - CriticalKV Lab"]
    assert found.metas["og:url"] == [f"{app.url}/run?id={slug}"]
    assert found.metas["og:description"][0].startswith("full, snapkv, snapkv+critical on tiny")
    assert "hides" not in str(found.metas)


def test_a_run_shared_by_link_is_previewed_by_its_title_and_stays_text(app, slug):
    with by("ann"):
        token = app.services.shares.create(slug, "1 day")
    with app.client() as client:
        client.get(f"/s/{token}")
        found = head(client, f"/run?id={slug}")
    assert found.titles == [f"{SECRET} - CriticalKV Lab"]
    assert found.metas["og:title"] == found.titles


@pytest.mark.parametrize("address", ["/run", "/run?id=nope", "/run?id=zzz999zzz999"])
def test_a_run_that_is_not_there_is_not_found(app, address):
    with app.client("bob") as client:
        answer = client.get(address, headers={"Accept": "text/html"})
        assert answer.status_code == client.head(address).status_code == 404
    assert "There is no run of this name" in answer.text
    assert re.search(r'<a href="/runs"', answer.text)


def test_somebody_elses_run_is_not_found_either(app, slug):
    with app.client("bob") as client:
        assert client.get(f"/run?id={slug}").status_code == 404
