"""Users take turns, and the order that is shown is the order that is kept."""

from hypothesis import given
from hypothesis import strategies as st

from ckv_core.records.run_request import RunRequest
from ckv_core.worker.fair_queue import FairQueue
from ckv_core.worker.messages import Job

REQUEST = RunRequest(context="one two three")


def queue_of(*names: str) -> FairQueue:
    """Jobs whose owner is their first letter; `-` is nobody."""
    queue = FairQueue()
    for name in names:
        put(queue, name)
    return queue


def put(queue: FairQueue, name: str) -> None:
    queue.put(Job(name, REQUEST, None if name[0] == "-" else name[0]))


def take(queue: FairQueue) -> str:
    job = queue.take()
    assert job is not None
    return job.job_id


def test_eight_runs_of_one_user_do_not_hold_back_anothers_first():
    queue = queue_of(*(f"a{n}" for n in range(8)))
    assert take(queue) == "a0"
    put(queue, "b0")
    put(queue, "b1")
    assert queue.order()[:5] == ("a0", "b0", "a1", "b1", "a2")
    queue.done("a0")
    assert take(queue) == "b0"
    put(queue, "c0")
    assert queue.order()[:5] == ("b0", "c0", "a1", "b1", "a2")


def test_who_comes_again_gets_no_turn_ahead_of_who_waited():
    queue = queue_of("a0", "a1", "b0")
    assert (take(queue), take(queue)) == ("a0", "b0")
    put(queue, "b1")
    assert queue.order() == ("a0", "b0", "a1", "b1")


def test_a_newcomer_joins_the_present_round_behind_who_waits_in_it():
    queue = queue_of("a0", "a1", "b0", "b1")
    assert (take(queue), take(queue), take(queue)) == ("a0", "b0", "a1")
    put(queue, "c0")
    assert [job.job_id for job in queue.waiting()] == ["b1", "c0"]


def test_a_removed_job_lets_its_owners_others_move_up():
    queue = queue_of("a0", "a1", "a2", "b0", "b1")
    assert queue.remove("a0")
    assert not queue.remove("a0")
    assert queue.order() == ("a1", "b0", "a2", "b1")


def test_what_was_taken_stands_first_until_it_is_done():
    queue = queue_of("a0", "a1", "b0", "b1")
    assert (take(queue), take(queue)) == ("a0", "b0")
    assert queue.order() == ("a0", "b0", "a1", "b1")
    queue.done("b0")
    assert queue.order() == ("a0", "a1", "b1")
    assert [job.job_id for job in queue.waiting()] == [take(queue), take(queue)] == ["a1", "b1"]
    for name in ("a0", "a1", "b1"):
        queue.done(name)
    assert (queue.take(), queue.waiting(), queue.order()) == (None, [], ())


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
