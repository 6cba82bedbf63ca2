"""The real engine in a real worker process, on a tiny model in a folder."""

import gc
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from ckv_core.experiment.study_engine import LocalEngine
from ckv_core.models.steps import silent
from ckv_core.records.events import TokensCounted
from ckv_core.records.records import RetainedSet, VariantResult
from ckv_core.records.run_request import RunRequest
from ckv_core.records.work_requests import PreviewRequest
from ckv_core.worker.client import WorkerClient
from ckv_core.worker.messages import (
    Job,
    JobEnd,
    JobEvent,
    ModelStatus,
)
from ckv_core.worker.runner import EngineRunner
from tests.ckv_core.worker.reply_log import Log
from tests.factories.models import CONTEXT_LIMIT, saved_model

START_S = 60.0
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
VARIANTS = ("full", "streaming_llm:budget=64", "snapkv+critical:budget=64")
TEXT = "The quick brown fox jumps over the lazy dog. " * 20


@pytest.fixture(scope="module")
def log():
    return Log()


@pytest.fixture(scope="module")
def client(log):
    """One worker and one process that counts, for all."""
    hasty = "tests.ckv_core.worker.test_counting:HastyCounts"
    with closing(WorkerClient(log, counter=hasty)) as client:
        client.start()
        yield client


def test_a_run_streams_a_whole_result(client, log, model_folder):
    request = RunRequest(
        context=TEXT, question="Who jumps?", model=model_folder, variants=VARIANTS, max_new_tokens=8
    )
    client.submit(Job("whole", request))
    assert log.end_of("whole", START_S) == JobEnd("whole")
    result = log.result_of("whole")
    assert result.finished
    assert result.prompt is not None
    assert [variant.spec for variant in result.variants] == list(VARIANTS)
    assert all(variant.receipt and variant.token_ids for variant in result.variants)
    assert {type(value) for value in result.environment.values()} == {str}
    assert result.timings_ms["load"] > 0
    counted = client.counter.count(request)
    assert counted.error == ""
    assert counted.tokens == result.prompt.tokens
    assert counted.limit == CONTEXT_LIMIT


def test_a_preview_gives_what_a_run_gives(client, log, model_folder):
    """The kept sets, figures and texts are the same; without answers it ends before the texts."""

    def request(budget: str, alpha: str) -> RunRequest:
        return RunRequest(
            context="Look at it first. " * 40,
            model=model_folder,
            variants=("full", "snapkv", "adakv+critical", "pyramidkv", "tova"),
            budgets=(budget,),
            alphas=(alpha,),
            max_new_tokens=4,
        )

    wanted = request("40%", "0.5")
    jobs = {
        "before": request("20%", "0.25"),
        "kept": PreviewRequest(run=wanted, until="kept"),
        "steps": PreviewRequest(run=wanted, until="step"),
        "preview": PreviewRequest(run=wanted),
        "run": wanted,
    }
    for name, each in jobs.items():
        client.submit(Job(name, each))
        assert log.end_of(name, START_S) == JobEnd(name)
    before, kept, steps, seen, run = map(log.result_of, jobs)
    chosen = [[variant.retained for variant in each.variants] for each in (kept, run)]
    assert bits_of(chosen[0]) == bits_of(chosen[1])
    for result in (steps, seen):
        for mine, stored in zip(result.variants, run.variants, strict=True):
            assert mine.receipt == stored.receipt
            assert as_lists(mine) == as_lists(stored)
    texts = [[(v.text, v.token_ids, v.agreement) for v in each.variants] for each in (seen, run)]
    assert texts[0] == texts[1]
    assert not any(variant.text for variant in steps.variants)
    assert before.variants[1].receipt != run.variants[1].receipt


def bits_of(sets: Sequence[RetainedSet | None]) -> list[bytes | None]:
    return [kept and kept.bits for kept in sets]


def as_lists(variant: VariantResult) -> list[object]:
    """What is kept, and how far the first step moves."""
    moved, kept = variant.perturbation, variant.retained
    if moved is None or kept is None:
        return [moved, kept]
    return [kept.bits, moved.head_l1.tolist(), moved.layer_hidden_l1.tolist(), moved.kl]


def test_a_running_decode_is_cancelled_soon_and_counts_go_on(client, log, model_folder):
    request = RunRequest(
        context=TEXT, model=model_folder, variants=VARIANTS, max_new_tokens=1024, ignore_eos=True
    )
    assert client.counter.count(request, START_S).tokens > 0  # its process starts
    client.submit(Job("long", request))
    log.wait(
        lambda r: isinstance(r, JobEvent) and r.job_id == "long" and "token " in str(r.event),
        START_S,
    )
    assert client.counter.count(request).tokens > 0
    pid = client.worker_pid
    client.cancel("long")
    assert log.end_of("long") == JobEnd("long", "cancelled")
    assert client.worker_pid == pid  # it stopped by itself, within the grace of 10 s


def test_a_template_that_loops_is_ended_and_other_counts_go_on(client, model_folder, tmp_path):
    def count(model: str) -> TokensCounted:
        return client.counter.count(RunRequest(context=TEXT, model=model), START_S)

    looping = saved_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(ENDLESS)
    with ThreadPoolExecutor(1) as pool:
        loop = pool.submit(count, looping)
        assert count(model_folder).tokens > 0
        assert "'no-such-model' is unknown" in count("no-such-model").error
        assert "tokenizer took longer than" in loop.result().error


def test_a_hostile_model_fails_with_one_sentence_while_other_runs_go_on(
    client, log, model_folder, tmp_path
):
    hostile = saved_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**8}))

    def asked(model: str) -> RunRequest:
        return RunRequest(context=TEXT, model=model, variants=VARIANTS, max_new_tokens=2)

    client.warm(hostile)
    client.submit(Job("bad", asked(hostile), "mallory"))
    client.submit(Job("worse", asked(hostile), "mallory"))
    client.submit(Job("good", asked(model_folder), "ann"))
    for name in ("bad", "worse"):
        assert "num_hidden_layers 100,000,000, more than" in log.failure_of(name)
        assert "\n" not in log.failure_of(name)
    assert log.end_of("good") == JobEnd("good")
    assert client._is_ready
    failed = {r.model for r in log.replies if isinstance(r, ModelStatus) and r.failed}
    assert hostile in failed
    assert model_folder not in failed


def test_a_collection_between_runs_does_not_look_at_what_was_imported(model_folder):
    for begin in (EngineRunner, lambda: LocalEngine(model_folder, "cpu")):
        gc.unfreeze()
        before = len(gc.get_objects())
        begin()
        assert len(gc.get_objects()) < before / 10


def test_another_models_run_finds_the_room_of_the_first_ones_prefills(model_folder, tmp_path):
    other = saved_model(tmp_path / "other")
    runner = EngineRunner()

    def run(model: str) -> None:
        runner.load(model, "auto", "auto", silent)
        request = RunRequest(context=TEXT, model=model, variants=("full",), max_new_tokens=1)
        assert list(runner.run(request, lambda: False))

    def held() -> list[bool]:
        return [bool(served.prefills.nbytes) for served in runner._models.values()]

    run(model_folder)
    assert held() == [True]
    run(other)
    assert held() == [False, True]
    run(model_folder)
    assert held() == [False, True]


def test_the_type_that_auto_gave_is_served_by_the_model_that_is_there(model_folder):
    """As a kept cache names it; another type is a model of its own."""
    runner = EngineRunner()
    for dtype, models in (("auto", 1), ("float32", 1), ("bfloat16", 2), ("auto", 2)):
        runner.load(model_folder, "cpu", dtype, silent)
        assert len(runner._models) == models, dtype
