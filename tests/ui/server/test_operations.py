"""The whole process: it ends at a signal, and its log is silent about texts."""

import signal
import time
from contextlib import closing
from types import SimpleNamespace

import httpx
import psutil
import pytest

from storage import repository
from storage.database import default_url, open_database
from tests.e2e.app_runner import scripted_app
from tests.factories.app import ENDLESS
from tests.processes import wait_for
from ui.serve import _stop_signals
from ui.services.services import CLOSED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_either_signal_asks_the_app_to_stop_and_nothing_else(number):
    before = signal.getsignal(number)
    with _stop_signals() as stop:
        assert not stop.is_set()
        assert signal.getsignal(number) is not before
        signal.raise_signal(number)
        assert stop.is_set()
    assert signal.getsignal(number) is before


# --- the whole process ----------------------------------------------------------------------

MARK = "SECRET-MARK"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """All that a process left after runs, failures and SIGTERM in the middle of a run."""
    home = tmp_path_factory.mktemp("process")
    with scripted_app(home) as app:
        with httpx.Client(base_url=app.url, timeout=30) as client:
            slugs = say_the_mark_everywhere(client)
            running = start(client, ENDLESS)
            wait_until(client, running, lambda run: run["variants"] and run["variants"][0]["text"])
            waiting = start(client, "steps 1")
        workers = psutil.Process(app.process.pid).children(recursive=True)
        asked = time.monotonic()
        status = app.stop()
        took = time.monotonic() - asked
    with closing(open_database(default_url(home))) as database, database.read() as session:
        runs = {slug: repository.load_run(session, slug) for slug in (*slugs, running, waiting)}
    return SimpleNamespace(
        status=status,
        took=took,
        runs=runs,
        ended=runs[running],
        workers=workers,
        log=(home / "err.txt").read_text(),
        out=app.log.read_text(),
    )


def start(client, question):
    body = {"context": f"one {MARK} two", "question": question, "answer": MARK}
    return client.post("/api/runs", json=body).json()["slug"]


def wait_until(client, slug, wanted):
    wait_for(lambda: client.get(f"/api/runs/{slug}", params={"wait_s": 0.1}).json(), wanted)


def say_the_mark_everywhere(client):
    """Runs that end in every way, and requests that fail in every place; the runs' slugs."""
    slugs = []
    for script in ("steps 2", "quote", f"steps {MARK}", "bug", "refuse", "kill"):
        slugs.append(start(client, script))
        wait_until(client, slugs[-1], lambda run: run["over"])
    # Too few values: Gradio itself fails, and says what it was given.
    client.post("/gradio_api/run/compare", json={"data": [MARK]})
    client.post("/gradio_api/call/compare", json={"data": [MARK]})
    client.post("/api/runs", json={"context": MARK, "variants": [MARK]})
    client.post("/api/runs", content=MARK)
    client.get("/api/runs", params={"text": MARK})
    client.get(f"/{MARK}")
    edit = {"action": "edit", "slugs": slugs[:1], "title": MARK, "note": MARK}
    act = {"data": [], "fn_index": 0, "event_data": edit, "session_hash": MARK}
    for number in range(60):
        client.post("/gradio_api/run/predict", json=act | {"fn_index": number})
    return slugs


def test_a_stopped_app_ends_its_runs_as_cancelled_and_exits_with_0(stopped):
    assert stopped.status == 0
    assert stopped.took < 20
    assert (stopped.ended.state, stopped.ended.reason) == ("cancelled", CLOSED)
    assert stopped.ended.result.variants[0].text.startswith("w0 ")
    assert psutil.wait_procs(stopped.workers, timeout=10)[1] == []


def test_no_log_line_holds_what_people_wrote(stopped):
    states = [run.state for run in stopped.runs.values()]
    assert states == ["done", "failed", "done", "failed", "failed", "failed", *["cancelled"] * 2]
    assert MARK not in stopped.log + stopped.out
