"""A Gradio session's id opens its stream to the login that opened it, and to nobody else."""

import inspect
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.factories.app import ENDLESS, finished, generating, script, wait_until
from tests.processes import wait_for
from tests.ui.served_app import Served, by
from ui.server import private


def join(app: Served, client: httpx.Client, slug: str, session: str) -> httpx.Response:
    body = {"data": [slug, ""], "fn_index": app.handler("RunPage.tail"), "session_hash": session}
    return client.post("/gradio_api/queue/join", json=body)


def test_another_users_stream_is_not_found(app):
    with by("ann"):
        slug = app.services.start_run(script(ENDLESS))
        wait_until(app.services, slug, generating)
    with app.client("ann") as ann, app.client("bob") as bob:
        event = join(app, ann, slug, "anns").json()["event_id"]
        data = "/gradio_api/queue/data?session_hash=anns"
        named = {"session_hash": "anns", "fn_index": app.handler("RunPage.tail"), "event_id": event}
        refused = {
            "join": join(app, bob, slug, "anns"),
            "data": bob.get(data),
            "cancel": bob.post("/gradio_api/cancel", json=named),
            "cancel by event": bob.post("/gradio_api/cancel", json={**named, "session_hash": "x"}),
            "reset": bob.post("/gradio_api/reset", json={"event_id": event}),
            "heartbeat": bob.get("/gradio_api/heartbeat/anns"),
            "call": bob.get(f"/gradio_api/call/get_run/{event}"),
        }
        assert {name: answer.status_code for name, answer in refused.items()} == dict.fromkeys(
            refused, 404
        )
        assert join(app, ann, slug, "anns").status_code == 200, "her own page joins again"
        with ann.stream("GET", data) as stream:
            lines = (line for line in stream.iter_lines() if "process_generating" in line)
            assert slug in next(lines)
    with by("ann"):
        app.services.cancel_run(slug)


def test_a_stream_opened_by_a_share_link_is_for_those_who_have_the_link(app):
    with by("ann"):
        slugs = [finished(app.services, "steps 1") for _ in range(2)]
        tokens = [app.services.shares.create(slug, "1 day") for slug in slugs]
    cookies = {f"ckv_share_{slug}": token for slug, token in zip(slugs, tokens, strict=True)}
    first = dict(list(cookies.items())[:1])
    with app.client(cookies=cookies) as both, app.client(cookies=first) as one:
        assert join(app, both, slugs[1], "shared").status_code == 200
        data = "/gradio_api/queue/data?session_hash=shared"
        assert one.get(data).status_code == 404
        assert join(app, one, slugs[0], "shared").status_code == 404
        assert "process_completed" in both.get(data).text


def test_the_answer_to_a_join_says_that_the_sessions_stream_has_ended(app):
    with by("ann"):
        slug = finished(app.services, "steps 1")
    data = "/gradio_api/queue/data?session_hash=ended"
    with app.client("ann") as own:
        assert "x-stream-ended" in join(app, own, slug, "ended").headers, "none was opened yet"
        assert "x-stream-ended" not in join(app, own, slug, "ended").headers, "both come on one"
        assert "close_stream" in own.get(data).text
        assert "x-stream-ended" in join(app, own, slug, "ended").headers
        assert "process_completed" in own.get(data).text


def test_what_names_no_session_is_answered_as_ever(app):
    with app.client("ann") as ann:
        for body in (b"", b"[]", b"{", b"x" * 10_000, json.dumps({"event_id": 1}).encode()):
            sent = ann.post("/gradio_api/cancel", content=body)
            assert sent.status_code == 422
        unknown = ann.post("/gradio_api/reset", json={"event_id": "nobodys"})
        assert unknown.status_code == 200


def test_one_viewer_and_all_guests_together_leave_room_in_the_queue(app, monkeypatch):
    monkeypatch.setattr(private, "STRANGERS_EVENTS", 2)
    monkeypatch.setattr(private, "EVENTS", 3)
    with by("ann"):
        slug = app.services.start_run(script(ENDLESS))
        token = app.services.shares.create(slug, "1 day")
    cookies = {f"ckv_share_{slug}": token}
    elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")

    def joined(client: httpx.Client, name: str, count: int) -> list[int]:
        return [join(app, client, slug, f"{name}{at}").status_code for at in range(count)]

    with (
        app.client(cookies=cookies) as guest,
        app.client(cookies=cookies, transport=elsewhere) as other,
        app.client("ann") as ann,
    ):
        assert joined(guest, "guest", 3) == [200, 200, 503]
        assert joined(other, "other", 2) == [200, 503]
        assert joined(ann, "ann", 4) == [200, 200, 200, 503]
        with by("ann"):
            app.services.cancel_run(slug)
        wait_for(lambda: join(app, guest, slug, "again").status_code, lambda code: code == 200)


def test_a_viewers_many_sessions_push_out_their_own_and_none_that_is_followed(app, monkeypatch):
    monkeypatch.setattr(private, "EVENTS", 3)
    queue = app.blocks._queue
    waiting = queue.pending_messages_per_session
    waiting.clear()
    with by("ann"):
        done, slug = finished(app.services, "steps 1"), app.services.start_run(script(ENDLESS))

    def open_sessions(client: httpx.Client, name: str, count: int) -> None:
        for at in range(count):
            assert join(app, client, done, f"{name}{at}").status_code == 200
            wait_for(lambda: len(queue.event_ids_to_events), lambda left: left <= 1)

    with app.client("ann") as ann, app.client("bob") as bob:
        join(app, ann, slug, "followed")
        open_sessions(ann, "ann", 1)
        open_sessions(bob, "bob", 5)
        assert set(waiting) == {"followed", "ann0", "bob2", "bob3", "bob4"}
        monkeypatch.setattr(waiting, "max_size", 5)
        open_sessions(ann, "more", 1)
        assert set(waiting) == {"followed", "more0", "bob2", "bob3", "bob4"}
    with by("ann"):
        app.services.cancel_run(slug)


def test_a_new_session_describes_no_more_components_than_it_sends_and_gets(app):
    with by("ann"):
        done = finished(app.services, "steps 1")
    with app.client("ann") as ann:
        assert join(app, ann, done, "described").status_code == 200
        holder = app.blocks.state_holder
        wait_for(lambda: "described" in holder and holder["described"].config_values, bool)
        described = holder["described"].config_values
        tail = app.blocks.fns[app.handler("RunPage.tail")]
        assert set(described) <= {block._id for block in (*tail.inputs, *tail.outputs)}


def areas_of(block) -> list:
    """What a component lies in, from the inside out."""
    found = []
    while (block := block.parent) is not None:
        found.append(block)
    return found


def test_what_a_stream_fills_is_built_before_it_starts(app):
    """Gradio's page may lose what comes for a component that it is just building."""
    fns, blocks = app.blocks.fns, app.blocks.blocks
    for fn in fns.values():
        if not inspect.isasyncgenfunction(fn.fn):
            continue
        first = fn
        while first.trigger_after is not None:
            first = fns[first.trigger_after]
        # What was clicked is shown, and so are the areas that it lies in.
        shown = [area for at, _ in first.targets if at in blocks for area in areas_of(blocks[at])]
        for each in fn.outputs:
            hidden = [a.elem_id for a in areas_of(each) if a.visible is False and a not in shown]
            assert not hidden, f"{fn.fn.__qualname__} fills {each.elem_id}"


def test_no_message_changes_a_value_that_still_waits_to_be_shown(app):
    """A page that is busy keeps several messages; each must still be shown as it was sent."""
    with by("ann"):
        slug = app.services.start_run(script(ENDLESS))
        wait_until(app.services, slug, generating)
    with app.client("ann") as ann, ThreadPoolExecutor(1) as pool:
        following = pool.submit(app.queued, ann, "RunPage.tail", slug, "")
        time.sleep(2.0)  # some snapshots of a run that goes on
        with by("ann"):
            app.services.cancel_run(slug)
        messages = [each for each in following.result() if "data" in each.get("output", {})]
    waiting: list[list[Any]] = []
    at_once: dict[int, str] = {}
    for message in messages:
        data = message["output"]["data"]
        if waiting and message["msg"] == "process_generating":
            data = [applied(old, edits) for old, edits in zip(waiting[-1], data, strict=True)]
        waiting.append(data)
        at_once |= values(data)
    assert len(waiting) > 3
    late: dict[int, str] = {}
    for data in waiting:
        late |= values(data)
    assert late == at_once
    updates = [value for data in waiting for value in data if isinstance(value, dict)]
    assert not [each for each in updates if "__type__" in each and "props" in each]


def values(data: list[Any]) -> dict[int, str]:
    """The values of a message by the number of their output; `skip` is none."""
    return {
        place: json.dumps(value)
        for place, value in enumerate(data)
        if not (isinstance(value, dict) and value.get("__type__") == "update")
    }


def applied(value: Any, edits: list[Any]) -> Any:
    """A value after a message's edits, changed in place as Gradio's page does it."""
    for action, path, new in edits:
        if not path:
            value = new if action == "replace" else value + new
            continue
        at = value
        for step in path[:-1]:
            at = at[step]
        if action == "delete":
            del at[path[-1]]
        elif action == "append":
            at[path[-1]] += new
        elif action == "add" and isinstance(at, list):
            at.insert(path[-1], new)
        else:
            at[path[-1]] = new
    return value


def test_a_stream_that_nobody_reads_stays_short_and_goes_on_when_it_is_read(app):
    with by("ann"):
        slug = app.services.start_run(script(ENDLESS))
        wait_until(app.services, slug, generating)
    with app.client("ann") as ann:
        assert join(app, ann, slug, "unread").status_code == 200
        waiting = app.blocks._queue.pending_messages_per_session["unread"]
        wait_for(waiting.qsize, lambda count: count > private.MOST_UNREAD)
        time.sleep(1.0)  # ten more snapshots of a run that goes on
        assert waiting.qsize() <= private.MOST_UNREAD + 2
        with by("ann"):
            app.services.cancel_run(slug)
        with ann.stream("GET", "/gradio_api/queue/data?session_hash=unread") as stream:
            lines = [line for line in stream.iter_lines() if line.startswith("data:")]
    assert json.loads(lines[-2].removeprefix("data:"))["msg"] == "process_completed"
    assert "Cancelled" in "".join(lines)
