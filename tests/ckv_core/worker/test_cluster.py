"""Studies and runs on one real Ray cluster of two workers: at once, cancelled, killed."""

import importlib.util
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import psutil
import pytest

from ckv_core.errors import CkvError, ConfigError, ModelError
from ckv_core.models.steps import silent
from ckv_core.request.compare_request import CompareRequest, too_many_tokens
from ckv_core.results.events import RunEvent
from ckv_core.results.records import ModelInfo
from ckv_core.studies.cluster import LOST, TRIES, Cluster
from ckv_core.studies.engine import LocalEngine
from ckv_core.studies.records import Key, Sample, SampleResult, Study
from ckv_core.studies.tasks.turns import TURNS
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.cluster_worker import ClusterWorker
from ckv_core.worker.messages import Job, JobCancelled, JobDone, JobEvent, JobFailed
from ckv_core.worker.runner import EngineRunner
from tests.ckv_core.worker.reply_log import Log
from tests.ckv_core.worker.scripted_runner import ScriptedRunner
from tests.factories.events import folded
from tests.processes import PATIENCE_S

# Ray warns of its own settings.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

WORKERS = 2
RNG = random.Random(1)


def sample(name: str, words: int) -> Sample:
    context = " ".join(RNG.choices(["ferry", "harbour", "nine", "gate"], k=words))
    return Sample(id=name, context=context, question="When?", answers=("nine",))


SAMPLES = [sample(f"q{at}", 60) for at in range(6)]


@pytest.fixture(scope="module")
def study(model_folder):
    """Five points on each sample."""
    return Study(
        name="tiny",
        data={"file": "samples.jsonl"},
        model=model_folder,
        variants=("snapkv", "snapkv+critical"),
        budgets=("30%", "50%"),
        max_new_tokens=4,
    )


@pytest.fixture(scope="module")
def cluster():
    """Two workers, of whose share an actor takes half."""
    with closing(Cluster("local", "cpu", workers=WORKERS, share=0.5)) as cluster:
        yield cluster


def processes(name: str) -> list[psutil.Process]:
    """Of Ray's actors of this class."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if name in command(child)]


def command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return "".join(process.cmdline())
    return ""


def test_a_cluster_of_this_machine_listens_on_loopback_only(cluster):
    class Worker:
        def process(self):
            return psutil.Process().pid

    actor = cluster.actor(Worker)
    worker = psutil.Process(cluster.answer(actor.process.remote()))
    listening: dict[str, set[str]] = {}
    for process in {worker, psutil.Process(), *psutil.Process().children(recursive=True)}:
        with suppress(psutil.NoSuchProcess):
            ends = [end for end in process.net_connections("inet") if end.status == "LISTEN"]
            for end in ends:
                listening.setdefault(end.laddr.ip, set()).add(process.name())
    cluster.kill(actor)
    assert {"raylet", "gcs_server"} < set().union(*listening.values())
    assert not {*listening} - {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, listening


# --- studies --------------------------------------------------------------------------------


def ran(
    engine: Cluster | LocalEngine,
    study: Study,
    samples: Sequence[Sample],
    standing: Collection[Key] = (),
    on_commit: Callable[[], object] = lambda: None,
) -> list[SampleResult]:
    results, served = [], []

    def commit(of_sample: Sequence[SampleResult]) -> None:
        results.extend(of_sample)
        on_commit()

    progress = [*engine.run_study(study, samples, standing, commit, lambda *of: served.append(of))]
    assert progress[-1].done == progress[-1].total == len(samples)
    assert {model.name for model, _ in served} <= {study.model}
    return results


def workers() -> list[psutil.Process]:
    """Those that work at a sample: the first thing they do there is to load torch."""
    found = []
    for worker in processes("MapWorker"):
        with suppress(psutil.Error):
            if any("libtorch_cpu" in each.path for each in worker.memory_maps()):
                found.append(worker)
    return found


def test_a_study_of_which_a_worker_is_killed_is_what_one_process_makes_of_it(
    cluster, study, monkeypatch
):
    """One of its samples is over the limit of the app, which the workers have to know."""
    samples = [*SAMPLES, sample("long", 80)]
    tokens = LocalEngine(study.model, "cpu").sizes(study, samples)["long"].tokens
    monkeypatch.setattr(cluster, "_prompt_tokens", tokens - 1)
    killed: list[psutil.Process] = []

    def kill_one() -> None:
        if not killed:
            killed.append(workers()[0])
            killed[0].kill()

    stand = {(SAMPLES[0].id, point.variant, point.budget) for point in study.points()}
    results = ran(cluster, study, samples, stand, kill_one)
    assert killed
    assert cluster.workers == WORKERS
    alone = LocalEngine(study.model, "cpu", prompt_tokens=tokens - 1)
    expected = ran(alone, study, samples, stand)
    assert Counter(result.key for result in results) == Counter(r.key for r in expected)
    assert {r.key: (r.text, r.score, r.cache_bytes, r.reason) for r in results} == {
        r.key: (r.text, r.score, r.cache_bytes, r.reason) for r in expected
    }
    refused = {result.sample: result.reason for result in results if result.reason}
    assert refused == {"long": str(too_many_tokens(tokens, tokens - 1))}


def test_a_sample_that_loses_its_worker_each_time_fails_alone(cluster, study):
    over = threading.Event()
    lost = []

    def kill_all() -> None:
        while not over.wait(0.2):
            for worker in workers():
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
                    lost.append(worker.pid)

    threading.Thread(target=kill_all, daemon=True).start()
    try:
        results = ran(cluster, study, SAMPLES[:1])
    finally:
        over.set()
    assert len(lost) >= TRIES
    assert {result.reason for result in results} == {LOST}
    assert len(results) == len(study.points())


def test_a_worker_tells_sizes_and_what_it_refuses(cluster, study, tmp_path):
    with pytest.raises(ModelError):
        cluster.sizes(replace(study, model=str(tmp_path)), SAMPLES)
    alone = LocalEngine(study.model, "cpu")
    assert cluster.sizes(study, SAMPLES) == alone.sizes(study, SAMPLES)
    assert cluster.parameters == alone.parameters
    too_short = {"task": TURNS.name, "length": 1, "samples": 1}
    with pytest.raises(ConfigError, match="as short as 1 tokens") as caught:
        cluster.samples(replace(study, data=too_short))
    assert caught.type is ConfigError, "Ray's own error is one too, with a screen of text"


def test_without_ray_or_a_cluster_it_says_what_to_do(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "ray" else find(name, *of)
    )
    with pytest.raises(ConfigError, match=r"requirements-cluster\.txt"):
        Cluster("local")


# --- runs -----------------------------------------------------------------------------------


class Either:
    """Plays scripts for the model `tiny`, and is the real engine for others."""

    def __init__(self) -> None:
        self.scripted, self.engine = ScriptedRunner(), EngineRunner()

    def load(self, model: str, *rest: Any) -> ModelInfo:
        return self._of(model).load(model, *rest)

    def compare(self, request: CompareRequest, *rest: Any) -> Iterator[RunEvent]:
        return self._of(request.model).compare(request, *rest)

    def _of(self, model: str) -> Any:
        return self.scripted if model == "tiny" else self.engine


@pytest.fixture(scope="module")
def log():
    return Log()


@pytest.fixture(scope="module")
def client(cluster, log):
    """A client of the cluster, whose actors start when they are needed."""
    starts = [partial(ClusterWorker, cluster)] * cluster.workers
    runner = "tests.ckv_core.worker.test_cluster:Either"
    with closing(WorkerClient(log, runner=runner, starts=starts)) as client:
        client.start()
        yield client


def request(model: str, tokens: int) -> CompareRequest:
    return CompareRequest(
        context="the ferry left the harbour at nine " * 12,
        question="when?",
        variants=("full", "snapkv:window=4,budget=30"),
        model=model,
        max_new_tokens=tokens,
        ignore_eos=True,
    )


def begin(client: WorkerClient, log: Log, name: str) -> None:
    """A run that does not end."""
    client.submit(Job(name, CompareRequest(context="one", question="steps 1000000", model="tiny")))
    log.start_of(name)


def test_a_study_has_room_beside_runs_that_do_not_end(cluster, client, log, study, monkeypatch):
    """And the device reaches its worker, which refuses it: that is told."""
    for name in ("a", "b"):
        begin(client, log, name)
    assert len(processes("_Host")) == cluster.workers
    monkeypatch.setattr(cluster, "_device", "cuda")
    told = []

    def run() -> None:
        with pytest.raises(CkvError, match="CUDA") as caught:
            ran(cluster, study, SAMPLES[:1])
        told.append(caught.value)

    thread = threading.Thread(target=run, daemon=True)  # without room it waits for ever
    thread.start()
    thread.join(2 * PATIENCE_S)
    assert len(told) == 1
    assert client.order() == ("a", "b")
    for name in ("a", "b"):
        client.cancel(name)
        assert log.end_of(name) == JobCancelled(name)


def test_two_run_at_once_and_one_that_is_killed_costs_its_own_run(client, log, model_folder):
    begin(client, log, "long")
    client.submit(Job("short", request(model_folder, 4)))
    assert log.end_of("short") == JobDone("short")
    assert client.order() == ("long",), "they ran at once"
    events = [r.event for r in log.replies if isinstance(r, JobEvent) and r.job_id == "short"]
    assert outcome(events) == in_this_process(request(model_folder, 4))

    begin(client, log, "other")
    killed, spared = processes("_Host")
    assert spared.nice() == psutil.Process().nice()
    killed.kill()
    lost = log.wait(lambda reply: isinstance(reply, JobFailed))
    assert lost.message.startswith("A worker of the cluster was lost; Ray's log has the reason")
    (left,) = {"long", "other"} - {lost.job_id}
    client.cancel(left)
    assert log.end_of(left) == JobCancelled(left)
    client.submit(Job("last", request(model_folder, 2)))
    assert log.end_of("last") == JobDone("last")


def in_this_process(asked: CompareRequest) -> tuple[object, ...]:
    runner = EngineRunner()
    runner.load(asked.model, "auto", "auto", silent)
    return outcome(list(runner.compare(asked, lambda: False)))


def outcome(events: list[RunEvent]) -> tuple[object, ...]:
    """What does not depend on the time that it took."""
    result = folded(events)
    return result.model, [(v.text, v.receipt) for v in result.variants], result.prompt
