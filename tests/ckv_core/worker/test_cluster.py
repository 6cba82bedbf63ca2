"""Studies on one real Ray cluster of two workers: killed, refused."""

import importlib.util
import pickle
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, suppress
from dataclasses import replace

import psutil
import pytest

from ckv_core.errors import ConfigError, ModelError
from ckv_core.experiment.cluster import LOST, Cluster, _Worker
from ckv_core.experiment.study import Key, Sample, SampleResult
from ckv_core.experiment.study_engine import LocalEngine
from ckv_core.experiment.study_runner import run_study
from ckv_core.experiment.tasks.needles import TURNS
from ckv_core.methods import METHODS
from ckv_core.records.run_request import RunRequest

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
    return RunRequest(
        name="tiny",
        data={"file": "samples.jsonl"},
        model=model_folder,
        variants=("snapkv", "snapkv+critical"),
        budgets=("30%", "50%"),
        max_new_tokens=4,
    )


@pytest.fixture(scope="module")
def cluster():
    """Two workers."""
    with closing(Cluster("local", "cpu", workers=WORKERS)) as cluster:
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
    assert not cluster._ray.data.DataContext.get_current().enable_progress_bars  # on a terminal
    assert not {*listening} - {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, listening


# --- studies --------------------------------------------------------------------------------


def ran(
    engine: Cluster | LocalEngine,
    study: RunRequest,
    samples: Sequence[Sample],
    standing: Collection[Key] = (),
    on_commit: Callable[[], object] = lambda: None,
) -> list[SampleResult]:
    results, served = [], []

    def commit(of_sample: Sequence[SampleResult]) -> None:
        results.extend(of_sample)
        on_commit()

    run = run_study(engine, study, samples, standing, commit, lambda *of: served.append(of))
    progress = [*run]
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


def test_a_study_of_which_a_worker_is_killed_is_what_one_process_makes_of_it(cluster, study):
    """One of its samples is wrong."""
    samples = [*SAMPLES, Sample(id="wrong", context="", question="When?", answers=("nine",))]
    killed: list[psutil.Process] = []

    def kill_one() -> None:
        if not killed:
            killed.append(workers()[0])
            killed[0].kill()

    stand = {(SAMPLES[0].id, point.variant, point.budget) for point in study.points()}
    results = ran(cluster, study, samples, stand, kill_one)
    assert killed
    assert cluster.workers == WORKERS
    alone = LocalEngine(study.model, "cpu")
    expected = ran(alone, study, samples, stand)
    assert Counter(result.key for result in results) == Counter(r.key for r in expected)
    assert {r.key: (r.text, r.score, r.figures.get("cache_bytes"), r.reason) for r in results} == {
        r.key: (r.text, r.score, r.figures.get("cache_bytes"), r.reason) for r in expected
    }
    refused = {result.sample: result.reason for result in results if result.reason}
    assert refused.keys() == {"wrong"}


def test_a_sample_that_loses_its_worker_each_time_fails_alone(cluster, study, monkeypatch):
    monkeypatch.setattr("ckv_core.experiment.cluster.TRIES", 2)
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
    assert len(lost) >= 2
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


def test_a_worker_of_a_cluster_ends_where_a_step_of_another_package_does_not(study, monkeypatch):
    watched = []
    monkeypatch.setattr(
        "ckv_core.experiment.study_engine.watched",
        lambda events, parts: (watched.extend(parts), events)[1],
    )
    job = pickle.dumps((study, "cpu", [(SAMPLES[0], study.points())]))
    (results,), _, _ = _Worker()._run(job)
    assert len(results) == len(study.points())
    assert {type(METHODS.get("snapkv").scorer)} <= {*map(type, watched)}
