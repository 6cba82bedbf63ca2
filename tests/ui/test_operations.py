"""Readiness and the metrics page: true to the services, and silent about texts."""

from types import SimpleNamespace

from starlette.applications import Starlette
from starlette.testclient import TestClient

from ckv_core.errors import StorageError
from ui.operations import operation_routes


def services(**changes):
    settings = {
        "worker_alive": True,
        "count_by_state": lambda: {"done": 2, "failed": 1},
        "live_states": lambda: {"running": 1},
    }
    return SimpleNamespace(**(settings | changes))


def get(path, **changes):
    return TestClient(Starlette(routes=operation_routes(services(**changes)))).get(path)


def test_ready_needs_the_database_and_the_worker():
    def broken():
        raise StorageError("The disk is full; free some space.")

    assert get("/readyz").status_code == 200
    assert get("/readyz", worker_alive=False).status_code == 503
    failed = get("/readyz", count_by_state=broken)
    assert (failed.status_code, failed.text) == (503, "The disk is full; free some space.\n")


def test_metrics_count_runs_by_state():
    response = get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    lines = response.text.splitlines()
    assert 'ckv_saved_runs{state="done"} 2.0' in lines
    assert 'ckv_live_runs{state="running"} 1.0' in lines
    assert "ckv_worker_up 1.0" in lines


def test_metrics_of_two_apps_do_not_mix():
    assert 'state="queued"' not in get("/metrics").text
    assert (
        'ckv_live_runs{state="queued"} 4.0'
        in get("/metrics", live_states=lambda: {"queued": 4}).text
    )
