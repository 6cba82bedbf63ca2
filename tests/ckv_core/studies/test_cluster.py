"""A study on two Ray workers of which one is killed: no sample is lost or counted twice."""

import importlib.util
import random
import threading
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from ckv_core.errors import CkvError, ConfigError, ModelError
from ckv_core.request.compare_request import too_many_tokens
from ckv_core.studies.cluster import LOST, TRIES, Cluster
from ckv_core.studies.engine import LocalEngine
from ckv_core.studies.records import Sample, SampleResult, Study
from tests.factories.models import plain_model, tiny_tokenizer

# Ray warns of its own settings.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

WORKERS = 2
RNG = random.Random(1)
SAMPLES = [
    Sample(
        id=f"q{at}",
        context=" ".join(RNG.choices(["ferry", "harbour", "nine", "gate"], k=60)),
        question="When?",
        answers=("nine",),
    )
    for at in range(6)
]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    path = tmp_path_factory.mktemp("models") / "tiny"
    plain_model("llama").save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return Study(
        name="tiny",
        data={"file": "samples.jsonl"},
        model=str(path),
        variants=("snapkv", "snapkv+critical"),
        budgets=("30%", "50%"),
        max_new_tokens=4,
    )


@pytest.fixture(scope="module")
def cluster():
    with closing(Cluster("local", "cpu", workers=WORKERS)) as cluster:
        yield cluster


def workers() -> list[psutil.Process]:
    """Those that work at a sample: the first thing they do there is to load torch."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "MapWorker" in "".join(child.cmdline()) and any(
                "libtorch_cpu" in each.path for each in child.memory_maps()
            ):
                found.append(child)
    return found


def ran(engine, study, samples, standing=(), on_commit=lambda: None) -> list[SampleResult]:
    results: list[SampleResult] = []
    served = []

    def commit(of_sample):
        results.extend(of_sample)
        on_commit()

    progress = [*engine.run_study(study, samples, standing, commit, lambda *of: served.append(of))]
    assert progress[-1].done == progress[-1].total == len(samples)
    assert {model.name for model, _ in served} <= {study.model}
    return results


def test_one_of_the_workers_is_killed(cluster, study):
    killed = []

    def kill_one():
        if not killed:
            killed.append(workers()[0])
            killed[0].kill()

    stand = {(SAMPLES[0].id, point.variant, point.budget) for point in study.points()}
    results = ran(cluster, study, SAMPLES, stand, kill_one)
    assert killed
    assert cluster.workers == WORKERS
    expected = ran(LocalEngine(study.model, "cpu"), study, SAMPLES, stand)
    assert Counter(result.key for result in results) == Counter(r.key for r in expected)
    assert {r.key: (r.text, r.score, r.cache_bytes) for r in results} == {
        r.key: (r.text, r.score, r.cache_bytes) for r in expected
    }


def test_a_sample_that_loses_its_worker_each_time_fails_alone(cluster, study):
    over = threading.Event()
    lost = []

    def kill_all():
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


def test_the_apps_limit_of_a_prompt_and_its_device_reach_the_workers(cluster, study, monkeypatch):
    tokens = LocalEngine(study.model, "cpu").sizes(study, SAMPLES[:1])["q0"].tokens
    monkeypatch.setattr(cluster, "_prompt_tokens", tokens - 1)
    reasons = {result.reason for result in ran(cluster, study, SAMPLES[:1])}
    assert reasons == {str(too_many_tokens(tokens, tokens - 1))}
    monkeypatch.setattr(cluster, "_prompt_tokens", None)
    monkeypatch.setattr(cluster, "_device", "cuda")
    with pytest.raises(CkvError, match="CUDA"):
        ran(cluster, study, SAMPLES[:1])


def test_a_model_that_no_worker_can_load_is_told(cluster, tmp_path: Path):
    missing = Study(name="x", data={}, model=str(tmp_path), variants=("snapkv",), budgets=("50%",))
    with pytest.raises(ModelError):
        cluster.sizes(missing, SAMPLES[:1])


def test_without_ray_or_a_cluster_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "ray" else find(name, *of)
    )
    with pytest.raises(ConfigError, match=r"requirements-cluster\.txt"):
        Cluster("local")
