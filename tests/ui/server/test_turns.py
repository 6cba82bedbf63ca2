"""One viewer's many calls leave places to others, end in time, and end when their client leaves."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import anyio.to_thread
import httpx
import pytest
from starlette.applications import Starlette

from ckv_core.base.checkpoints import checked_by, checkpoint
from ckv_core.errors import CkvError
from tests.factories.app import FakeServices
from tests.ui.run.test_routes import SETTINGS
from ui.accounts import turns as rules
from ui.accounts.access import EVERYBODY, SCOPE_KEY, Viewer
from ui.accounts.turns import LINE_KEY, BusyError, OverError, Turn, Turns, in_turn, taking_turns
from ui.run.routes import build_routes
from ui.server.gates import TurnGate
from ui.server.guard import Guard
from ui.server.identity import Identity
from ui.server.private import guard_handlers
from ui.server.route_answers import IMPORT_TYPE, import_route
from ui.shell.account_routes import login_routes
from ui.users import HASHER, User

ANN, BOB = Viewer(user="ann"), Viewer(user="bob")


def held(line):
    """How many of so many calls have a place at a time."""

    async def count():
        now = most = 0

        async def call():
            nonlocal now, most
            async with line.place(Turn()):
                now += 1
                most = max(most, now)
                await asyncio.sleep(0)
                now -= 1

        await asyncio.gather(*(call() for _ in range(20)))
        return most

    return count()


@pytest.mark.parametrize(
    ("viewer", "most"), [(ANN, rules.OWN), (EVERYBODY, rules.OWN), (Viewer(), rules.STRANGERS)]
)
def test_a_viewer_has_so_many_places(viewer, most):
    assert asyncio.run(held(Turns().line(viewer, "10.0.0.1"))) == most


def test_a_user_has_one_line_from_all_addresses_and_strangers_one_each():
    turns = Turns()
    lines = [turns.line(ANN, "10.0.0.1"), turns.line(BOB, "10.0.0.1"), turns.line(Viewer(), "1")]
    assert turns.line(ANN, "10.0.0.2") is lines[0]
    assert turns.line(Viewer(shared=frozenset({"a"})), "1") is lines[2]
    assert len({*lines, turns.line(Viewer(), "2")}) == 4


def test_all_strangers_together_leave_places():
    async def most_places():
        turns, taken = Turns(), 0

        async def stay(line):
            nonlocal taken
            async with line.place(Turn()):
                taken += 1
                await asyncio.sleep(60)

        lines = [turns.line(Viewer(), str(at)) for at in range(2 * rules.ALL_STRANGERS)]
        tasks = [asyncio.create_task(stay(line)) for line in lines]
        await asyncio.sleep(0.01)
        async with asyncio.timeout(5), turns.line(ANN, "1").place(Turn()):
            for task in tasks:
                task.cancel()
        return taken

    assert asyncio.run(most_places()) == rules.ALL_STRANGERS


def test_who_waits_too_long_or_with_too_many_is_busy(monkeypatch):
    monkeypatch.setattr(rules, "WAIT_S", 0.01)

    async def wait():
        line = Turns().line(Viewer(), "1")
        async with line.place(Turn()), line.place(Turn()):
            with pytest.raises(BusyError):
                await anext_of(line)
            monkeypatch.setattr(rules, "WAIT_S", 60)
            tasks = [asyncio.create_task(anext_of(line)) for _ in range(rules.MOST_WAITING)]
            await asyncio.sleep(0)
            with pytest.raises(BusyError):
                await anext_of(line)
        await asyncio.gather(*tasks)

    async def anext_of(line):
        async with line.place(Turn()):
            pass

    asyncio.run(wait())


def test_work_ends_at_its_next_checkpoint_once_its_time_is_over_or_its_page_was_closed(monkeypatch):
    checkpoint()  # where nobody can end it, nothing happens
    turns = Turns()
    open_turn, closed_turn = turns.begin("one"), turns.begin("two")
    turns.leave("two")
    open_turn.check()
    with pytest.raises(OverError, match="was closed"), checked_by(closed_turn.check):
        checkpoint()
    monkeypatch.setattr(rules, "DEADLINE_S", -1)
    with pytest.raises(OverError, match="ask for less"):
        Turn().check()


def test_a_cancelled_call_keeps_its_place_until_its_thread_has_ended():
    started, ended = threading.Event(), threading.Event()

    def work():
        started.set()
        try:
            while True:
                checkpoint()
                time.sleep(0.001)
        except CkvError:
            ended.set()
            raise

    async def run():
        scope = {LINE_KEY: Turns().line(ANN, "1")}
        with taking_turns(scope):
            task = asyncio.create_task(in_turn(work))
            while not started.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await in_turn(lambda: 7), ended.wait(20)

    assert asyncio.run(run()) == (7, True)


def test_the_work_for_a_request_ends_once_its_client_has_left():
    ends = []

    def work():
        try:
            for _ in range(2_000):
                checkpoint()
                time.sleep(0.001)
        except OverError as error:
            ends.append(str(error))
            raise

    async def answer(*_):
        await anyio.to_thread.run_sync(work)

    async def run():
        scope = {"type": "http", "path": "/data/x", LINE_KEY: Turns().line(ANN, "1")}
        messages = [{"type": "http.disconnect"}, {"type": "http.request"}]

        async def receive():
            await asyncio.sleep(0.01)
            return messages.pop()

        async def send(_):
            pass

        await TurnGate(answer)(scope, receive, send)

    asyncio.run(run())
    assert ends == [rules.LEFT]


def test_a_handler_that_yields_takes_a_turn_for_each_of_its_steps():
    now = most = 0

    def handler():
        yield

    async def step(*_):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    async def run():
        turns, queue = Turns(), SimpleNamespace(clean_events=None, pending_messages_per_session={})
        blocks = SimpleNamespace(call_function=step, _queue=queue)
        guard_handlers(blocks, turns)
        scope = {LINE_KEY: turns.line(ANN, "1"), SCOPE_KEY: ANN}
        request = SimpleNamespace(request=SimpleNamespace(scope=scope), session_hash="one")
        called = [SimpleNamespace(fn=handler), [], object(), request]
        await asyncio.gather(*(blocks.call_function(*called) for _ in range(20)))

    asyncio.run(run())
    assert most == rules.OWN


def test_files_of_one_viewer_are_read_one_by_one_and_leave_room_for_anothers():
    begun, go_on = [], threading.Event()

    def take(name, _):
        begun.append(name)
        assert name == "bob" or go_on.wait(20)
        return {}

    async def run():
        turns, app = Turns(), import_route("/file", take).app

        async def send(viewer):
            scope = {LINE_KEY: turns.line(viewer, "1")}
            transport = httpx.ASGITransport(lambda given, *more: app({**given, **scope}, *more))
            async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
                headers = {"content-type": IMPORT_TYPE}
                return await client.post("/file", params={"name": viewer.user}, headers=headers)

        anns = [asyncio.create_task(send(ANN)) for _ in range(4)]
        while not begun:
            await asyncio.sleep(0.001)
        async with asyncio.timeout(20):
            bobs = await send(BOB)
        before = [*begun]
        go_on.set()
        return before, [each.status_code for each in (bobs, *await asyncio.gather(*anns))]

    assert asyncio.run(run()) == (["ann", "bob"], [200] * 5)


def test_health_and_the_login_are_answered_while_all_threads_and_places_are_taken():
    services, users, turns = FakeServices(), {"ann": User(HASHER.hash("right"))}, Turns()
    services.accounts.sign_in = lambda _: "token"
    identity = Identity(users, services.accounts, services.shares)
    routes = [*build_routes(services), *login_routes(services.accounts, identity)]
    app = Guard(Starlette(routes=routes), replace(SETTINGS, users=users), identity, turns)
    over = threading.Event()

    async def ask():
        limiter = anyio.to_thread.current_default_thread_limiter()
        for _ in range(int(limiter.total_tokens)):
            await limiter.acquire_on_behalf_of(object())
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy, line = loop.run_in_executor(None, over.wait), turns.line(Viewer(), "127.0.0.1")
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
        try:
            async with client, line.place(Turn()), line.place(Turn()), asyncio.timeout(20):
                health = await client.get("/healthz")
                login = await client.post("/login", data={"user": "ann", "password": "right"})
        finally:
            over.set()
            await busy
        return health.json(), login.status_code

    assert asyncio.run(ask()) == ({"ok": True}, 303)


def test_nobodys_work_is_done_at_once():
    assert asyncio.run(in_turn(SimpleNamespace, a=1)).a == 1
