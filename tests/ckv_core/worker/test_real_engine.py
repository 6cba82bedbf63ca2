"""The real engine in a real worker process, on a tiny model in a folder."""

import gc
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckv_core.models.steps import silent
from ckv_core.request.compare_request import DEFAULT_MODEL, CompareRequest
from ckv_core.results.events import RunResult
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import Job, JobCancelled, JobDone, JobEvent, JobFailed, ModelStatus
from ckv_core.worker.runner import EngineRunner
from tests.ckv_core.worker.reply_log import Log
from tests.factories.models import CONTEXT_LIMIT, saved_model

ROOT = Path(__file__).parents[3]
START_S = 60.0
VARIANTS = ("full", "streaming_llm:budget=64", "snapkv+critical:budget=64")
TEXT = "The quick brown fox jumps over the lazy dog. " * 20
APP = """
    import json, sys, threading
    from ckv_core.request.compare_request import CompareRequest
    from ckv_core.worker.client import WorkerClient
    from ckv_core.worker.messages import Job, JobDone, JobFailed

    def main(model):
        over = threading.Event()
        replies = []

        def on_reply(reply):
            replies.append(reply)
            if isinstance(reply, JobDone | JobFailed):
                over.set()

        client = WorkerClient(on_reply)
        client.start()
        text = "The quick brown fox jumps over the lazy dog. " * 20
        variants = ("full", "snapkv:budget=64")
        client.submit(Job("a", CompareRequest(context=text, model=model, variants=variants)))
        over.wait(60)
        client.close()
        heavy = [name for name in ("torch", "transformers", "gradio") if name in sys.modules]
        print(json.dumps({"end": type(replies[-1]).__name__, "heavy": heavy}))

    if __name__ == "__main__":
        main(sys.argv[1])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model folder as a user would have it."""
    return saved_model(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="module")
def log() -> Log:
    return Log()


@pytest.fixture(scope="module")
def client(log: Log) -> Iterator[WorkerClient]:
    client = WorkerClient(log)
    client.start()
    yield client
    client.close()


def test_a_run_streams_a_whole_result(client: WorkerClient, log: Log, folder: str) -> None:
    request = CompareRequest(
        context=TEXT, question="Who jumps?", model=folder, variants=VARIANTS, max_new_tokens=8
    )
    client.submit(Job("whole", request))
    assert log.end_of("whole", START_S) == JobDone("whole")
    result = RunResult()
    for reply in log.replies:
        if isinstance(reply, JobEvent) and reply.job_id == "whole":
            result.apply(reply.event)
    assert result.finished
    assert result.prompt is not None
    assert [variant.spec for variant in result.variants] == list(VARIANTS)
    assert all(variant.receipt and variant.token_ids for variant in result.variants)
    assert {type(value) for value in result.environment.values()} == {str}
    assert result.timings_ms["load"] > 0
    counted = client.count_tokens(request)
    assert counted.error == ""
    assert counted.tokens == result.prompt.tokens
    assert counted.limit == CONTEXT_LIMIT


def test_the_same_prompt_is_read_once(client: WorkerClient, log: Log, folder: str) -> None:
    read_ms = []
    for budget in (64, 96):
        variants = (f"snapkv:budget={budget}",)
        request = CompareRequest(
            context="Read once. " * 40, model=folder, variants=variants, max_new_tokens=1
        )
        job = f"read {budget}"
        client.submit(Job(job, request))
        assert log.end_of(job, START_S) == JobDone(job)
        result = RunResult()
        for reply in log.replies:
            if isinstance(reply, JobEvent) and reply.job_id == job:
                result.apply(reply.event)
        read_ms.append(result.timings_ms["prefill"])
    assert read_ms[0] > 0
    assert read_ms[1] == 0


def test_a_running_decode_is_cancelled_soon_and_counts_go_on(
    client: WorkerClient, log: Log, folder: str
) -> None:
    request = CompareRequest(
        context=TEXT, model=folder, variants=VARIANTS, max_new_tokens=1024, ignore_eos=True
    )
    client.submit(Job("long", request))
    log.wait(
        lambda r: isinstance(r, JobEvent) and r.job_id == "long" and "token " in str(r.event),
        START_S,
    )
    assert client.count_tokens(request).tokens > 0
    pid = client.worker_pid
    client.cancel("long")
    assert log.end_of("long") == JobCancelled("long")
    assert client.worker_pid == pid  # it stopped by itself, within the grace of 10 s


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "no-such-model"}, "'no-such-model' is unknown"),
        ({"context": TEXT * 20}, "over the model's limit"),
        ({"variants": ("snapkv:budget=3",)}, "window"),
    ],
)
def test_a_users_mistake_is_one_sentence(
    client: WorkerClient, log: Log, folder: str, changes: dict[str, object], sentence: str
) -> None:
    request = CompareRequest(**{"context": TEXT, "model": folder, **changes})  # type: ignore[arg-type]
    client.submit(Job(sentence, request))
    end = log.end_of(sentence, START_S)
    assert isinstance(end, JobFailed)
    assert sentence in end.message
    assert "Traceback" not in end.message


def test_an_unknown_model_answers_a_count_with_a_sentence(client: WorkerClient) -> None:
    counted = client.count_tokens(CompareRequest(context=TEXT, model="no-such-model"), START_S)
    assert "'no-such-model' is unknown" in counted.error


def test_the_app_stays_free_of_torch_after_a_real_run(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "some_app.py"
    path.write_text(textwrap.dedent(APP))
    app = subprocess.run(
        [sys.executable, str(path), folder],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=2 * START_S,
        check=True,
    )
    assert json.loads(app.stdout.splitlines()[-1]) == {"end": "JobDone", "heavy": []}


@pytest.mark.slow
def test_the_default_model_becomes_ready_and_counts(client: WorkerClient, log: Log) -> None:
    client.warm(DEFAULT_MODEL)
    log.wait(
        lambda r: isinstance(r, ModelStatus) and r.model == DEFAULT_MODEL and r.ready, 5 * START_S
    )
    counted = client.count_tokens(CompareRequest(context=TEXT))
    assert (counted.limit, counted.error) == (8192, "")


def test_a_collection_between_runs_does_not_look_at_what_was_imported() -> None:
    gc.unfreeze()
    before = len(gc.get_objects())
    EngineRunner()
    assert len(gc.get_objects()) < before / 10


def test_another_models_run_finds_the_room_of_the_first_ones_prefills(
    folder: str, tmp_path: Path
) -> None:
    other = saved_model(tmp_path / "other")
    runner = EngineRunner()

    def run(model: str) -> None:
        runner.load(model, "auto", "auto", silent)
        request = CompareRequest(context=TEXT, model=model, variants=("full",), max_new_tokens=1)
        assert list(runner.compare(request, lambda: False))

    def held() -> list[bool]:
        return [bool(served.prefills.nbytes) for served in runner._models.values()]

    run(folder)
    assert held() == [True]
    run(other)
    assert held() == [False, True]
    run(folder)
    assert held() == [False, True]
