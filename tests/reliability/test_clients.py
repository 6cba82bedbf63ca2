"""Fifty clients list, open and follow runs while one streams; nobody gets another's data."""

import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.factories.app import ENDLESS, end_of, generating, script, wait_until
from tests.ui.served_app import Served, by

CLIENTS = 50
ROUNDS = int(os.environ.get("CKV_SOAK", "1"))  # `make soak` asks for more
USERS = ("ann", "bob")


@pytest.fixture(scope="module")
def app(team_app):
    return team_app


def start(app: Served, user: str, played: str, context: str) -> str:
    with by(user):
        return app.services.start_run(replace(script(played), context=context))


@pytest.mark.slow
def test_fifty_clients_get_their_own_runs_while_one_streams(app):
    slugs = {user: start(app, user, "steps 3", f"{user} only words") for user in USERS}
    for user, slug in slugs.items():
        with by(user):
            end_of(app.services, slug)
    streaming = start(app, "ann", ENDLESS, "ann only words")
    with by("ann"):
        wait_until(app.services, streaming, generating)
    times: dict[str, list[float]] = {}
    lock = threading.Lock()

    def visit(number: int) -> None:
        user, other = USERS[number % 2], USERS[1 - number % 2]
        with app.client(user) as client:
            for _ in range(ROUNDS):
                for name, call in (
                    ("list", lambda: app.call(client, "RunsPage.open")),
                    ("open", lambda: client.get(f"/data/{slugs[user]}/result.json")),
                    ("prompt", lambda: client.get(f"/data/{slugs[user]}/prompt")),
                    ("stranger", lambda: client.get(f"/data/{slugs[other]}/result.json")),
                ):
                    begin = time.perf_counter()
                    answer = call()
                    spent = time.perf_counter() - begin
                    with lock:
                        times.setdefault(name, []).append(spent * 1000)
                    assert answer.status_code == (404 if name == "stranger" else 200), name
                    # Who asks for another's run is told that there is none of that name.
                    assert slugs[other] not in answer.text or name == "stranger"
                    if name == "list":
                        assert slugs[user] in answer.text
                        assert (streaming in answer.text) == (user == "ann")
                    if name == "prompt":
                        assert answer.json()["pieces"] == [f"{user} ", "only ", "words "]

    with by("ann"):
        before = app.services.snapshot(streaming).result.variants[0].text
    begin = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(visit, range(CLIENTS)))
    wall = time.perf_counter() - begin
    with by("ann"):
        view = app.services.snapshot(streaming)
        assert view.result.variants[0].text != before, (
            "the run stood still while others were served"
        )
        app.services.cancel_run(streaming)
        end = end_of(app.services, streaming)
    words = end.result.variants[0].text.split()
    assert words == [f"w{step}" for step in range(len(words))]
    count = sum(len(spent) for spent in times.values())
    print(f"{CLIENTS} clients, {count} requests in {wall:.1f} s, {count / wall:.0f} a second")
    for name, spent in times.items():
        p95 = statistics.quantiles(spent, n=20)[-1]
        print(f"{name}: median {statistics.median(spent):.0f} ms, 95th percentile {p95:.0f} ms")


@pytest.mark.slow
def test_pages_that_follow_a_run_see_it_to_its_end(app):
    slug = start(app, "bob", "long 60", "bob follows this")
    with ThreadPoolExecutor(10) as pool:
        ends = list(pool.map(lambda _: followed(app, slug), range(10)))
    assert all(ends)


def followed(app: Served, slug: str) -> bool:
    with app.client("bob") as client:
        messages = app.queued(client, "RunPage.tail", slug, "")
    return bool(messages[-1]["success"]) and "w59" in str(messages)
