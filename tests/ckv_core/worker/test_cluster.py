"""Studies and runs on one real Ray cluster of two workers: at once, cancelled, killed."""

import importlib.util
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial

import psutil
import pytest

from ckv_core.errors import CkvError, ConfigError, ModelError
from ckv_core.models.steps import silent
from ckv_core.request.compare_request import CompareRequest, too_many_tokens
from ckv_core.results.events import RunEvent
from ckv_core.studies.cluster import LOST, TRIES, Cluster
from ckv_core.studies.engine import LocalEngine
from ckv_core.studies.records import Key, Sample, SampleResult, Study
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.cluster_worker import ClusterWorker
from ckv_core.worker.messages import Job, JobCancelled, JobDone, JobEvent, JobFailed
from ckv_core.worker.process import ENGINE_RUNNER
from ckv_core.worker.runner import EngineRunner
from tests.ckv_core.worker.reply_log import TIMEOUT_S, Log, wait_until
from tests.factories.events import folded

# Ray warns of its own settings.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

WORKERS = 2
RNG = random.Random(1)
WORDS = "the ferry left the harbour at nine " * 12
SHORT = ("full", "snapkv:window=4,budget=30")
LONG = tuple(f"snapkv:window=4,budget={budget}" for budget in range(30, 46))


def sample(name: str, words: int) -> Sample:
    context = " ".join(RNG.choices(["ferry", "harbour", "nine", "gate"], k=words))
    return Sample(id=name, context=context, question="When?", answers=("nine",))


SAMPLES = [sample(f"q{at}", 60) for at in range(6)]


@pytest.fixture(scope="module")
def study(model_folder) -> Study:
    return Study(
        name="tiny",
        data={"file": "samples.jsonl"},
        model=model_folder,
        variants=("snapkv", "snapkv+critical"),
        budgets=("30%", "50%"),
        max_new_tokens=4,
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
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


# --- studies --------------------------------------------------------------------------------


def ran(
    engine: Cluster | LocalEngine,
    study: Study,
    samples: Sequence[Sample],
    standing: Collection[Key] = (),
    on_commit: Callable[[], object] = lambda: None,
) -> list[SampleResult]:
    results: list[SampleResult] = []
    served = []

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


def test_the_device_reaches_the_workers_and_what_they_refuse_is_told(cluster, study, monkeypatch):
    monkeypatch.setattr(cluster, "_device", "cuda")
    with pytest.raises(CkvError, match="CUDA"):
        ran(cluster, study, SAMPLES[:1])


def test_a_model_that_no_worker_can_load_is_told(cluster, tmp_path):
    missing = Study(name="x", data={}, model=str(tmp_path), variants=("snapkv",), budgets=("50%",))
    with pytest.raises(ModelError):
        cluster.sizes(missing, SAMPLES[:1])


def test_without_ray_or_a_cluster_it_says_what_to_do(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "ray" else find(name, *of)
    )
    with pytest.raises(ConfigError, match=r"requirements-cluster\.txt"):
        Cluster("local")


# --- runs -----------------------------------------------------------------------------------


@pytest.fixture
def log() -> Log:
    return Log()


def connected(cluster: Cluster, log: Log, runner: str = ENGINE_RUNNER) -> WorkerClient:
    starts = [partial(ClusterWorker, cluster)] * cluster.workers
    client = WorkerClient(log, runner=runner, starts=starts)
    client.start()
    return client


def request(model: str, tokens: int, variants: tuple[str, ...] = SHORT) -> CompareRequest:
    return CompareRequest(
        context=WORDS,
        question="when?",
        variants=variants,
        model=model,
        max_new_tokens=tokens,
        ignore_eos=True,
    )


def actors() -> list[psutil.Process]:
    return processes("_Host")


def test_two_run_at_once_and_one_that_is_killed_costs_its_own_run(cluster, log, model_folder):
    with closing(connected(cluster, log)) as client:
        for name in ("one", "two"):  # the second one waits, so the second actor starts
            client.submit(Job(name, request(model_folder, 1)))
        wait_until(lambda: all(lane.is_idle for lane in client._lanes))
        client.submit(Job("long", request(model_folder, 1000, LONG)))
        log.start_of("long")
        client.submit(Job("short", request(model_folder, 4)))
        assert log.end_of("short") == JobDone("short")
        assert client.order() == ("long",), "they ran at once"
        client.cancel("long")
        assert log.end_of("long") == JobCancelled("long")
        events = [r.event for r in log.replies if isinstance(r, JobEvent) and r.job_id == "short"]
        assert outcome(events) == in_this_process(request(model_folder, 4))

        for name in ("b", "c"):
            client.submit(Job(name, request(model_folder, 1000, LONG)))
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
        client.submit(Job("last", request(model_folder, 2)))
        assert log.end_of("last") == JobDone("last")


def test_a_study_has_room_beside_runs_that_do_not_end(cluster, log, study):
    scripts = "tests.ckv_core.worker.scripted_runner:ScriptedRunner"
    with closing(connected(cluster, log, runner=scripts)) as client:
        for name in ("a", "b"):
            client.submit(Job(name, CompareRequest(context="one two", question="steps 1000000")))
            log.start_of(name)
        assert len(actors()) == cluster.workers
        results: list[SampleResult] = []

        def run() -> None:
            results.extend(ran(cluster, study, SAMPLES[:1]))

        thread = threading.Thread(target=run, daemon=True)  # without room it waits for ever
        thread.start()
        thread.join(2 * TIMEOUT_S)
        assert not thread.is_alive()
        assert {result.state for result in results} == {"done"}
        assert client.order() == ("a", "b")


def in_this_process(asked: CompareRequest) -> tuple[object, ...]:
    runner = EngineRunner()
    runner.load(asked.model, "auto", "auto", silent)
    return outcome(list(runner.compare(asked, lambda: False)))


def outcome(events: list[RunEvent]) -> tuple[object, ...]:
    """What does not depend on the time that it took."""
    result = folded(events)
    return result.model, [(v.text, v.receipt) for v in result.variants], result.prompt
