"""Several workers of one client, made up: who gets which job, and what the loss of one costs."""

from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest

from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import Progress
from ckv_core.worker.client import OnLost, OnReply, WorkerClient
from ckv_core.worker.messages import (
    Cancel,
    Command,
    Job,
    JobCancelled,
    JobDone,
    JobEvent,
    JobFailed,
    ModelStatus,
    Ping,
    Pong,
    Warm,
    WorkerReady,
)
from tests.ckv_core.worker.reply_log import Log
from tests.processes import PATIENCE_S, wait_for

READY = ModelStatus("tiny", True, "tiny is ready.")


class Fake:
    """Ready at once; has every model, stops at once, and ends a job when the test says so."""

    pid = None

    def __init__(
        self, workers: list["Fake"], _: str, on_reply: OnReply, on_lost: OnLost, *, broken: bool
    ) -> None:
        self.on_reply, self.on_lost = partial(on_reply, self), partial(on_lost, self)
        self.sent: list[Command] = []
        self.is_deaf = False
        self.has_replied = not broken
        workers.append(self)
        if broken:
            self.on_lost()
        else:
            self.on_reply(WorkerReady())

    def send(self, command: Command) -> None:
        self.sent.append(command)
        if self.is_deaf:
            return
        match command:
            case Job():
                self.on_reply(replace(READY, model=command.request.model))
                self.on_reply(JobEvent(command.job_id, Progress("prefill", 0.0, "")))
            case Warm():
                self.on_reply(replace(READY, model=command.model))
                self.on_reply(JobDone(command.job_id))
            case Cancel():
                self.on_reply(JobCancelled(command.job_id))
            case Ping():
                self.on_reply(Pong())

    def kill(self) -> None:
        self.on_lost()

    def stop(self, timeout_s: float) -> None:
        pass

    def exit_reason(self) -> str:
        return "the worker was lost"

    @property
    def jobs(self) -> list[str]:
        return [command.job_id for command in self.sent if isinstance(command, Job)]


class Lanes:
    """A client of so many made-up workers."""

    def __init__(self, *broken: bool) -> None:
        self.log = Log()
        self.workers: list[Fake] = []
        starts = [partial(Fake, self.workers, broken=each) for each in broken]
        self.client = WorkerClient(self.log, starts=starts)
        self.client.start()

    def begin(self, name: str, context: str, question: str = "", model: str = "tiny") -> Fake:
        """Submit a job of the user that its first letter names; the worker that got it."""
        self.submit(name, context, question, model)
        self.log.start_of(name)
        return next(worker for worker in self.workers if name in worker.jobs)

    def submit(self, name: str, context: str, question: str = "", model: str = "tiny") -> None:
        request = CompareRequest(context=context, question=question, model=model)
        self.client.submit(Job(name, request, name[0]))

    def end(self, name: str) -> None:
        worker = next(worker for worker in reversed(self.workers) if name in worker.jobs)
        worker.on_reply(JobDone(name))
        assert self.log.end_of(name) == JobDone(name)


@pytest.fixture
def lanes():
    """Two that work and have read `one` and `two`."""
    lanes = Lanes(False, False)
    with closing(lanes.client):
        for name in ("one", "two"):
            lanes.begin(name, name)
        for name in ("one", "two"):
            lanes.end(name)
        yield lanes


def test_a_worker_more_starts_only_while_jobs_wait():
    lanes = Lanes(False, False, False)
    with closing(lanes.client):
        for name in "ab":
            lanes.begin(name, name)
            lanes.end(name)
        assert lanes.client.workers == len(lanes.workers) == 1
        for name in "cd":
            lanes.begin(name, name)
        assert lanes.client.workers == len(lanes.workers) == 2
        assert lanes.client.order() == ("c", "d")


FIRST, SECOND = 0, 1
# Groups of jobs that run at once: context, question, model, and the worker that gets it.
PLACES = {
    "where its prompt was read, though another has been idle longer": [
        [("two", "", "tiny", SECOND)],
        [("two", "another question", "tiny", SECOND)],
        [("neither", "", "tiny", FIRST)],
        [("two", "another question", "tiny", SECOND)],
    ],
    "the same prompt counts more than the same context": [
        [("one", "asked here", "tiny", FIRST), ("one", "asked there", "tiny", SECOND)],
        [("one", "asked there", "tiny", SECOND)],
        [("one", "asked here", "tiny", FIRST)],
    ],
    "to another, where the prompt's worker is busy": [
        [("two", "", "tiny", SECOND), ("two", "", "tiny", FIRST)],
    ],
    "where its model is loaded": [
        [("one", "", "large", FIRST)],
        [("new", "", "large", FIRST)],
    ],
    "a model that nobody has, where the fewest are": [
        [("one", "", "large", FIRST)],
        [("two", "", "tiny", SECOND)],
        [("new", "", "larger", SECOND)],
    ],
    "another model's run makes a worker forget its prompts": [
        [("one", "", "large", FIRST)],
        [("two", "", "tiny", SECOND), ("three", "", "tiny", FIRST)],
        [("one", "", "tiny", SECOND)],
    ],
}


@pytest.mark.parametrize("groups", PLACES.values(), ids=PLACES.keys())
def test_a_job_goes_where_it_suits_best(lanes, groups):
    workers = list(lanes.workers)
    for at, group in enumerate(groups):
        names = [f"{user}{at}" for user, _ in zip("ab", group, strict=False)]
        for name, (context, question, model, worker) in zip(names, group, strict=True):
            assert lanes.begin(name, context, question, model) is workers[worker], name
        for name in names:
            lanes.end(name)


def test_users_take_turns_whichever_worker_is_free(lanes):
    for name in ("a0", "a1"):
        lanes.begin(name, name)
    for name in ("a2", "a3", "b0"):
        lanes.submit(name, name)
    wait_for(lambda: len(lanes.client.order()) == 5)
    assert lanes.client.order() == ("a0", "a1", "b0", "a2", "a3")
    lanes.end("a1")
    lanes.log.start_of("b0")
    assert lanes.client.order() == ("a0", "b0", "a2", "a3")


def test_a_lost_worker_costs_its_own_job_alone(lanes):
    lost, other = lanes.workers
    assert lanes.begin("a", "one") is lost
    assert lanes.begin("b", "two") is other
    lanes.submit("c", "three")
    lost.kill()
    end = lanes.log.end_of("a")
    assert isinstance(end, JobFailed)
    assert end.message.startswith("The worker was lost. A new worker starts by itself.")
    lanes.log.start_of("c")
    assert lanes.workers[2].jobs == ["c"]
    assert lanes.client.order() == ("b", "c")
    statuses = [reply for reply in lanes.log.replies if isinstance(reply, ModelStatus)]
    assert set(statuses) == {READY}, "the other one still has the model"
    lost.on_reply(JobDone("c"))
    lanes.end("b")
    assert lanes.client.order() == ("c",), "what a lost one still says is dropped"


def test_a_job_that_a_lost_worker_never_mentioned_goes_to_another_once(lanes):
    first, second = lanes.workers
    first.is_deaf = True
    lanes.submit("a", "one")
    wait_for(lambda: first.jobs == ["one", "a"])
    first.kill()
    lanes.log.start_of("a")
    assert second.jobs == ["two", "a"]
    lanes.end("a")
    third = lanes.workers[2]
    second.is_deaf = third.is_deaf = True
    lanes.submit("b", "two")
    wait_for(lambda: "b" in second.jobs)
    second.kill()
    wait_for(lambda: "b" in third.jobs)
    third.kill()
    assert isinstance(lanes.log.end_of("b"), JobFailed)
    assert lanes.client.order() == ()


def test_cancel_reaches_the_worker_that_runs_the_job_or_the_queue(lanes):
    first, second = lanes.workers
    assert lanes.begin("a", "one") is first
    assert lanes.begin("b", "two") is second
    lanes.submit("c", "three")
    for name in "cb":
        lanes.client.cancel(name)
        assert lanes.log.end_of(name) == JobCancelled(name)
    assert Cancel("b") in second.sent
    assert not any(isinstance(command, Cancel) for command in first.sent)
    assert "c" not in first.jobs + second.jobs
    assert lanes.client.order() == ("a",)


def test_ready_is_one_that_answers(lanes):
    lanes.workers[0].is_deaf = True
    assert lanes.client.is_ready(PATIENCE_S)
    lanes.workers[1].is_deaf = True
    assert not lanes.client.is_ready(0.1)


def test_a_worker_that_cannot_start_fails_no_job_that_another_takes():
    lanes = Lanes(False, True)
    with closing(lanes.client):
        lanes.begin("a", "one")
        lanes.submit("b", "two")
        wait_for(lambda: len(lanes.workers) > 2)
        assert lanes.client.order() == ("a", "b")
        lanes.end("a")
        lanes.log.start_of("b")
        assert lanes.workers[0].jobs == ["a", "b"]
