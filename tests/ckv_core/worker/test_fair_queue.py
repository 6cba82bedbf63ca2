"""Users take turns, and the order that is shown is the order that is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.records.run_request import RunRequest
from ckv_core.worker.client import FairQueue
from ckv_core.worker.messages import Job

REQUEST = RunRequest(context="one two three")


def put(queue: FairQueue, name: str) -> None:
    """A job whose owner is its first letter; `-` is nobody."""
    queue.put(Job(name, REQUEST, None if name[0] == "-" else name[0]))


def take(queue: FairQueue) -> str:
    job = queue.take()
    assert job is not None
    return job.job_id


@pytest.mark.parametrize(
    ("steps", "order"),
    [
        ("a0 a1 a2 a3 take b0 b1", "a0 b0 a1 b1 a2 a3"),
        ("a0 a1 a2 take b0 done take c0", "b0 c0 a1 a2"),
        ("a0 a1 b0 take take b1", "a0 b0 a1 b1"),
        ("a0 a1 b0 b1 take take take c0", "a0 b0 a1 b1 c0"),
        ("a0 a1 a2 b0 b1 out:a0 out:a0", "a1 b0 a2 b1"),
        ("a0 b0 take take done done", ""),
    ],
    ids=["newcomer", "two", "again", "behind who waits", "removed", "empty"],
)
def test_what_runs_stands_first_and_users_take_turns(steps, order):
    queue, taken = FairQueue(), []
    for step in steps.split():
        match step.split(":"):
            case ["take"]:
                taken.append(take(queue))
            case ["done"]:
                queue.done(taken.pop(0))
            case ["out", name]:
                assert (name in queue.order()) == queue.remove(name)
            case [name]:
                put(queue, name)
    assert " ".join(queue.order()) == order
    assert [job.job_id for job in queue.waiting()] == order.split()[len(taken) :]


@given(st.lists(st.sampled_from(["a", "b", "-", "take"]), max_size=60))
def test_jobs_are_taken_in_the_order_shown_and_nobody_waits_for_two_of_another(steps):
    queue = FairQueue()
    waiting: list[str] = []
    overtaken: dict[tuple[str, str], int] = {}
    for number, step in enumerate([*steps, *["take"] * len(steps)]):
        if step != "take":
            waiting.append(f"{step}{number}")
            put(queue, waiting[-1])
        elif waiting:
            shown = queue.order()
            taken = take(queue)
            queue.done(taken)
            assert shown[0] == taken
            assert sorted(shown) == sorted(waiting)
            waiting.remove(taken)
            firsts = {name[0]: name for name in reversed(waiting)}
            for name in firsts.values():
                if name[0] != taken[0]:
                    pair = (name, taken[0])
                    overtaken[pair] = overtaken.get(pair, 0) + 1
                    assert overtaken[pair] <= 2, (pair, "one that ran, one turn")
