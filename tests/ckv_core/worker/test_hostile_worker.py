"""Hostile model folders in the real engine's own processes, while other people's runs go on."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckv_core.request.compare_request import CompareRequest
from ckv_core.worker import count_runner
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import Job, JobDone, JobFailed, ModelStatus
from tests.ckv_core.worker.reply_log import Log
from tests.factories.models import saved_model

TEXT = "The quick brown fox jumps over the lazy dog. " * 20
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


class HastyCounts(count_runner.CountRunner):
    """The real one, but for how long a count may take."""

    def __init__(self) -> None:
        super().__init__()
        count_runner.COUNT_S = 1.0


@pytest.fixture(scope="module")
def log() -> Log:
    return Log()


@pytest.fixture(scope="module")
def client(log: Log) -> Iterator[WorkerClient]:
    client = WorkerClient(log, counter="tests.ckv_core.worker.test_hostile_worker:HastyCounts")
    client.start()
    yield client
    client.close()


def made(path: Path, template: str | None = None, **changes: object) -> str:
    saved_model(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return str(path)


def asked(model: str) -> CompareRequest:
    variants = ("full", "snapkv:budget=64")
    return CompareRequest(context=TEXT, model=model, variants=variants, max_new_tokens=2)


@pytest.mark.slow
def test_a_hostile_model_fails_with_one_sentence_while_other_runs_go_on(
    client: WorkerClient, log: Log, tmp_path: Path
) -> None:
    good = made(tmp_path / "good")
    hostile = made(tmp_path / "hostile", num_hidden_layers=100_000_000)
    client.warm(hostile)
    client.submit(Job("bad", asked(hostile), "mallory"))
    client.submit(Job("worse", asked(hostile), "mallory"))
    client.submit(Job("good", asked(good), "ann"))
    for name in ("bad", "worse"):
        end = log.end_of(name)
        assert isinstance(end, JobFailed)
        assert "num_hidden_layers 100,000,000, more than" in end.message
        assert "\n" not in end.message
    assert log.end_of("good") == JobDone("good")
    assert client.is_ready(60)
    failed = [r for r in log.replies if isinstance(r, ModelStatus) and r.failed]
    assert {status.model for status in failed} == {hostile}


@pytest.mark.slow
def test_a_looping_template_stops_neither_counts_nor_the_worker(
    client: WorkerClient, tmp_path: Path
) -> None:
    good, looping = made(tmp_path / "good"), made(tmp_path / "looping", template=ENDLESS)
    with ThreadPoolExecutor(1) as pool:
        loop = pool.submit(client.count_tokens, asked(looping), 300)
        assert client.count_tokens(asked(good), 300).tokens > 0
        assert "chat template" in loop.result().error
    assert client.count_tokens(asked(good), 300).tokens > 0
    assert client.is_ready(60)
