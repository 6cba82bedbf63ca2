"""What happens when processes die, and what the app leaves behind."""

import os
import signal
import subprocess
import sys

import pytest
from playwright.sync_api import Page, expect

from tests.e2e import steps
from tests.e2e.app_runner import ROOT, START_LIMIT_S, STOP_LIMIT_S, App
from tests.ports import free_port
from tests.processes import assert_gone


def test_a_killed_worker_fails_its_run_and_the_next_run_works(page: Page, app: App):
    steps.run_endlessly(page)
    for pid in app.workers():
        os.kill(pid, signal.SIGKILL)
    steps.expect_state(page, "failed")
    expect(page.locator("#status")).to_contain_text("A new worker starts by itself")
    assert steps.generated(page, "Full cache").inner_text()
    page.goto(app.url)
    page.locator("#context-bar [data-ready]").wait_for()
    steps.fill(page)
    steps.run(page)
    steps.expect_state(page, "done")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_app_leaves_no_process_behind(start_app, number):
    app = start_app()
    workers = app.workers()
    assert workers
    app.process.send_signal(number)
    assert app.process.wait(STOP_LIMIT_S) == 0
    assert_gone(workers)
    assert "Traceback" not in app.log.read_text()


def test_a_killed_app_leaves_no_process_behind(start_app):
    app = start_app()
    workers = app.workers()
    assert workers
    app.process.kill()
    app.process.wait(STOP_LIMIT_S)
    assert_gone(workers)


def test_a_second_app_on_the_same_data_is_one_sentence(app: App):
    home = app.log.parent
    started = subprocess.run(
        [sys.executable, str(ROOT / "app.py")],
        env={**os.environ, "CKV_PORT": str(free_port()), "CKV_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
        check=False,
    )
    assert started.returncode == 1
    assert "Another CriticalKV Lab serves" in started.stderr
    assert len(started.stderr.strip().splitlines()) == 1


def test_a_taken_port_is_one_sentence(app: App, tmp_path):
    port = app.url.rpartition(":")[2]
    started = subprocess.run(
        [sys.executable, str(ROOT / "app.py")],
        env={**os.environ, "CKV_PORT": port, "CKV_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
        check=False,
    )
    assert started.returncode == 1
    assert f"Port {port} on 127.0.0.1 cannot be used" in started.stderr
    assert len(started.stderr.strip().splitlines()) == 1
