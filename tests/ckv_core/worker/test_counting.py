"""Counts against real processes: one that hangs ends, the others are answered."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial

import psutil
import pytest

from ckv_core.models.steps import silent
from ckv_core.records.run_request import RunRequest
from ckv_core.worker import counting
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.counting import TRIES, CountRunner, TokenCounter
from tests.processes import PATIENCE_S, wait_for

COUNTER = "tests.ckv_core.worker.scripted_runner:ScriptedCounter"
THREE = RunRequest(context="one two three", model="tiny")


class HastyCounts(CountRunner):
    """The real one, but for how long a count may take; for test_real_engine.py."""

    def __init__(self) -> None:
        super().__init__()
        counting.COUNT_S = 1.0


@pytest.fixture
def counter():
    """Counts by script, in a process that the first count starts."""
    with closing(TokenCounter(partial(WorkerClient, runner=COUNTER))) as counter:
        yield counter


def test_the_last_tokenizers_are_kept(monkeypatch):
    from ckv_core.models import checkpoint, geometry, loading

    monkeypatch.setattr(checkpoint, "find_checkpoint", lambda model, *_, **__: model)
    monkeypatch.setattr(geometry, "context_limit", lambda _: 8)
    for name in ("kept_conversion", "read_config", "read_tokenizer"):
        monkeypatch.setattr(loading, name, str)  # the model's name stands for what is read
    monkeypatch.setattr(loading, "header_limit_s", lambda _: 1.0)
    runner = CountRunner()
    for number in range(counting.KEPT_TOKENIZERS + 1):
        assert len(runner._kept) == number
        runner.load(f"{number}", "cpu", "float32", silent)
    runner.load("0", "cpu", "float32", silent)
    assert list(runner._kept) == ["2", "3", "4", "0"]


def pid_of(counter: TokenCounter) -> int:
    wait_for(lambda: counter._client is not None and counter._client.worker_pid is not None)
    return counter._client.worker_pid


def test_a_count_that_takes_too_long_for_who_asked_says_so(counter):
    request = RunRequest(context="a", question="hang", model="tiny")
    assert "longer than 0.2 s" in counter.count(request, 0.2).error


def test_a_lost_process_is_asked_again_and_then_told(counter, tmp_path):
    hangs = tmp_path / "hangs"
    request = RunRequest(context="a", question=f"hang {hangs}", model="tiny")
    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(counter.count, request, PATIENCE_S)
        for _ in range(TRIES):
            wait_for(hangs.exists)
            hangs.unlink()
            os.kill(pid_of(counter), signal.SIGKILL)
        assert "SIGKILL" in counted.result().error
    assert counter.count(THREE, PATIENCE_S).tokens == 3


def test_closing_answers_who_waits_and_leaves_no_process(counter, tmp_path):
    hangs = tmp_path / "hangs"
    request = RunRequest(context="a", question=f"hang {hangs}", model="tiny")
    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(counter.count, request, PATIENCE_S)
        wait_for(hangs.exists)
        pid = pid_of(counter)
        counter.close()
        assert counted.result().error == "The app is closing."
    wait_for(lambda: not psutil.pid_exists(pid))
    assert counter.count(THREE, PATIENCE_S).error == "The app is closing."


@pytest.mark.parametrize("text", ["one two three. " * 200, "\u96ea🙂" * 300])
def test_the_beginning_of_a_long_text_that_fits_is_as_long_as_can_be(model_folder, text):
    runner = CountRunner()
    runner.load(model_folder, "cpu", "auto", silent)
    asked = RunRequest(context=text, question="Which?", model=model_folder, max_new_tokens=8)
    (whole,) = runner.run(asked, bool)
    assert whole.tokens + 8 > whole.limit
    (cut,) = runner.run(replace(asked, context=text[: whole.first_chars]), bool)
    assert whole.limit - 8 - 8 <= cut.tokens <= whole.limit - 8
    assert cut.first_chars == 0
    assert 0 < whole.first_tokens < whole.tokens
    (none,) = runner.run(replace(asked, question=text), bool)
    assert none.first_chars == 0
