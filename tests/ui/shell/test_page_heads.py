"""The head of each page: its title, what a link preview says, and a 404 for a run not there."""

import dataclasses
import html
import re

import httpx
import pytest

from tests.factories.app import STUDY, request, store_run
from tests.factories.runs import done_result
from tests.ui.served_app import by
from ui.shell.header import PAGES

SECRET = 'Who </title><script>alert("x")</script> hides?'


@dataclasses.dataclass(frozen=True)
class Head:
    """Titles of a page, and what its meta tags say by name."""

    titles: list[str]
    metas: dict[str, list[str]]


@pytest.fixture(scope="module")
def slug(app) -> str:
    return store_run(app.services, request(question=SECRET), done_result(), owner="ann")


def head(client: httpx.Client, path: str) -> Head:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["content-length"]) == len(answer.content)
    found = Head(re.findall(r"<title>(.*?)</title>", answer.text, re.DOTALL), {})
    for tag in re.findall(r"<meta\s[^>]*>", answer.text):
        given = dict(re.findall(r'([\w:-]+)="([^"]*)"', tag))
        name = given.get("property") or given.get("name", "")
        found.metas.setdefault(name, []).append(html.unescape(given.get("content", "")))
    return found


def test_every_page_has_a_title_and_a_preview_of_its_own(app):
    with app.client("ann") as client:
        heads = {page: head(client, page) for page in PAGES}
    for page, found in heads.items():
        assert found.titles == found.metas["og:title"] == [f"{PAGES[page][0]} - CriticalKV Lab"]
        assert found.metas["og:url"] == [f"{app.url}{page}"]
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
    title = f"{SECRET} - CriticalKV Lab"
    assert (found.titles, found.metas["og:title"]) == ([html.escape(title)], [title])


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


def test_a_run_of_many_samples_has_the_page_of_all_runs(app):
    study = app.services.studies._store.save(STUDY, (), "ann")
    with app.client("ann") as client:
        answer = client.get(f"/study?id={study}&budget=10%25", follow_redirects=False)
        assert answer.status_code == 308
        assert answer.headers["location"].endswith(f"/run?id={study}&budget=10%25")
        assert head(client, f"/run?id={study}").titles == [
            f"Run {study}: 7 points - CriticalKV Lab"
        ]
    with app.client("bob") as client:
        assert client.get(f"/run?id={study}").status_code == 404
