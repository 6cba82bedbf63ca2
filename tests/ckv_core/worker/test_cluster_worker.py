"""Runs on two actors of a real Ray cluster: at once, cancelled, one killed, a study beside them."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial

import psutil
import pytest

from ckv_core.models.steps import silent
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import RunEvent, RunResult
from ckv_core.studies.cluster import Cluster
from ckv_core.studies.records import Sample, SampleResult, Study
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.cluster_worker import ClusterWorker
from ckv_core.worker.messages import Job, JobCancelled, JobDone, JobEvent, JobFailed
from ckv_core.worker.runner import EngineRunner
from tests.ckv_core.worker.reply_log import TIMEOUT_S, Log
from tests.factories.models import plain_model, tiny_tokenizer

# Ray warns of its own settings.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SCRIPTS = "tests.ckv_core.worker.scripted_runner:ScriptedRunner"
WORDS = "the ferry left the harbour at nine " * 12
SHORT = ("full", "snapkv:window=4,budget=30")
LONG = tuple(f"snapkv:window=4,budget={budget}" for budget in range(30, 46))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "tiny"
    plain_model("llama").save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with closing(Cluster("local", "cpu", workers=2, share=0.5)) as cluster:
        yield cluster


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def client(cluster: Cluster, log: Log) -> Iterator[WorkerClient]:
    with closing(
        WorkerClient(log, starts=[partial(ClusterWorker, cluster)] * cluster.workers)
    ) as client:
        client.start()
        yield client


def request(folder: str, tokens: int, variants: tuple[str, ...] = SHORT) -> CompareRequest:
    return CompareRequest(
        context=WORDS,
        question="when?",
        variants=variants,
        model=folder,
        max_new_tokens=tokens,
        ignore_eos=True,
    )


def actors() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "_Host" in "".join(child.cmdline()):
                found.append(child)
    return found


def test_two_run_at_once_and_one_that_is_killed_costs_its_own_run(
    client: WorkerClient, log: Log, folder: str
) -> None:
    for name in ("one", "two"):  # the second one waits, so the second actor starts
        client.submit(Job(name, request(folder, 1)))
    deadline = time.monotonic() + 2 * TIMEOUT_S
    while not all(lane.is_idle for lane in client._lanes):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    client.submit(Job("long", request(folder, 1000, LONG)))
    log.start_of("long")
    client.submit(Job("short", request(folder, 4)))
    assert log.end_of("short") == JobDone("short")
    assert client.order() == ("long",), "they ran at once"
    client.cancel("long")
    assert log.end_of("long") == JobCancelled("long")
    assert folded(log, "short") == expected(request(folder, 4))

    for name in ("b", "c"):
        client.submit(Job(name, request(folder, 1000, LONG)))
        log.start_of(name)
    killed, spared = actors()
    assert spared.nice() == psutil.Process().nice()
    killed.kill()
    lost = log.wait(lambda reply: isinstance(reply, JobFailed))
    assert isinstance(lost, JobFailed)
    assert lost.message.startswith("A worker of the cluster was lost; Ray's log has the reason")
    (other,) = {"b", "c"} - {lost.job_id}
    client.cancel(other)
    assert log.end_of(other) == JobCancelled(other)
    client.submit(Job("last", request(folder, 2)))
    assert log.end_of("last") == JobDone("last")


def test_a_study_has_room_beside_runs_that_do_not_end(
    cluster: Cluster, log: Log, folder: str
) -> None:
    starts = [partial(ClusterWorker, cluster)] * cluster.workers
    client = WorkerClient(log, runner=SCRIPTS, starts=starts)
    client.start()
    for name in ("a", "b"):
        client.submit(Job(name, CompareRequest(context="one two", question="steps 1000000")))
        log.start_of(name)
    assert len(actors()) == cluster.workers
    study = Study(
        name="s", data={}, model=folder, variants=("snapkv",), budgets=("50%",), max_new_tokens=2
    )
    samples = [
        Sample(id=f"q{at}", context=f"{at} {WORDS}", question="when?", answers=("nine",))
        for at in range(2)
    ]
    results: list[SampleResult] = []

    def run() -> None:
        for _ in cluster.run_study(study, samples, (), results.extend, lambda *_: None):
            pass

    thread = threading.Thread(target=run, daemon=True)  # without room it waits for ever
    thread.start()
    thread.join(2 * TIMEOUT_S)
    assert not thread.is_alive()
    assert {result.state for result in results} == {"done"}
    assert client.order() == ("a", "b")
    client.close()


def folded(log: Log, job_id: str) -> tuple[object, ...]:
    return outcome([r.event for r in log.replies if isinstance(r, JobEvent) and r.job_id == job_id])


def expected(asked: CompareRequest) -> tuple[object, ...]:
    """The same run in this process."""
    runner = EngineRunner()
    runner.load(asked.model, "auto", "auto", silent)
    return outcome(list(runner.compare(asked, lambda: False)))


def outcome(events: list[RunEvent]) -> tuple[object, ...]:
    """What does not depend on the time that it took."""
    result = RunResult()
    for event in events:
        result.apply(event)
    return result.model, [(v.text, v.receipt) for v in result.variants], result.prompt
