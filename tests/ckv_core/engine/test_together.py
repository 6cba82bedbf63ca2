"""Comparisons that share a decode batch: each as if it were alone, and failing alone."""

from functools import cache

import pytest

from ckv_core.engine import memory, together
from ckv_core.engine.compare import compare
from ckv_core.engine.generation import SharedDecode
from ckv_core.engine.together import compare_together
from ckv_core.errors import CkvError, EngineError, NoRoomError
from ckv_core.records.events import RunResult
from ckv_core.records.grid import at_points
from ckv_core.records.run_request import RunRequest
from tests.factories.events import folded
from tests.factories.models import tiny_model

LINE = "The ferry left at nine and nobody waved. "


def asked(at: int, *variants: str, **changes: object) -> RunRequest:
    settings: dict[str, object] = {
        "context": f"Line {at}. " + LINE * (3 + 2 * at),
        "scenario": "context-only" if at % 2 else "regular",
        "variants": variants or ("snapkv:budget=30%", "adakv+critical:budget=50%"),
        "max_new_tokens": 5 + at,
    }
    request = RunRequest(question="When did it leave?", **settings | changes)
    return at_points(request, request.variants)


REQUESTS = (
    asked(0),
    asked(1, "full", "h2o:budget=40%", "streaming_llm:budget=40%"),
    asked(2, "snapkv:budget=60%,store=int8", "tova:budget=50%"),
    asked(3, max_new_tokens=1),
    asked(4, max_new_tokens=0),
)


def run(requests=REQUESTS, arch="llama", **options) -> dict[int, RunResult | CkvError]:
    return dict(compare_together(requests, tiny_model(arch), **options))


def told(result: RunResult) -> list[tuple[object, ...]]:
    return [
        (
            v.spec,
            v.text,
            v.token_ids,
            v.stopped,
            v.agreement,
            v.receipt,
            v.held,
            bool(v.perturbation),
        )
        for v in result.variants
    ]


@cache
def alone(at: int, arch: str = "llama") -> RunResult:
    return folded(compare(REQUESTS[at], tiny_model(arch)))


@pytest.mark.parametrize(("arch", "most"), [("llama", 1), ("gemma3", 4), ("llama", 32)])
def test_every_result_is_what_the_comparison_alone_gives(arch, most, monkeypatch):
    monkeypatch.setattr(together, "GROUP_ROWS", most)
    found = run(arch=arch)
    assert sorted(found) == [*range(len(REQUESTS))]
    for at, result in found.items():
        assert isinstance(result, RunResult)
        assert result.finished
        assert told(result) == told(alone(at, arch))


def test_rows_of_several_prompts_are_decoded_in_one_batch(monkeypatch):
    batches = []
    decode = SharedDecode.decode
    monkeypatch.setattr(
        SharedDecode, "decode", lambda self: (batches.append(self.rows), decode(self))
    )
    run([asked(at) for at in range(7)])
    # Two variants and the full cache of each. The first is stored at once, and a stop loses little.
    assert batches == [3, 12, 6]
    batches.clear()
    monkeypatch.setattr(together, "GROUP_ROWS", 6)
    run([asked(at) for at in range(4)])
    assert batches == [3, 6, 3]


def test_the_next_request_is_asked_for_when_it_can_be_begun(monkeypatch):
    monkeypatch.setattr(together, "GROUP_ROWS", 6)
    taken = []

    def requests():
        for at in range(4):
            taken.append(at)
            yield asked(at)

    ended = compare_together(requests(), tiny_model("llama"))
    assert [(next(ended)[0], len(taken)) for _ in range(2)] == [(0, 1), (1, 3)]


def test_on_a_cpu_long_prompts_wait_for_no_other(monkeypatch):
    """So that each is stored before the next begins; a kill loses the one that is read."""
    monkeypatch.setattr(together, "GROUP_TOKENS", alone(2).prompt.tokens)
    taken = []

    def requests():
        for at in range(4):
            taken.append(at)
            yield asked(at)

    ended = compare_together(requests(), tiny_model("llama"))
    counts = [len(taken) for _, _ in ended]
    # The second is short and waits for the third, which is long as the fourth is.
    assert counts == [1, 3, 3, 4]


def test_what_cannot_run_fails_alone():
    wrong = asked(1, context="x" * 200_000)
    found = run([asked(0), wrong, asked(2)])
    assert isinstance(found.pop(1), CkvError)
    assert all(isinstance(result, RunResult) for result in found.values())


def test_what_finds_no_room_beside_others_is_run_after_them(monkeypatch):
    """Memory is short while rows wait; alone each run has enough."""
    order, check = [], memory.check_memory

    def short(run, prefills):
        waits = run.shared is not None and run.shared.rows > 0
        order.append((run.prompt.tokens, waits))
        if waits:
            raise NoRoomError("No room.")
        return check(run, prefills)

    monkeypatch.setattr("ckv_core.engine.compare.check_memory", short)
    found = run([asked(0), asked(1), asked(2)])
    assert all(isinstance(result, RunResult) and result.finished for result in found.values())
    assert [waits for _, waits in order] == [False, False, True, False]


@pytest.mark.parametrize("error", [EngineError("Not finite."), MemoryError()])
def test_a_batch_that_fails_is_run_again_one_by_one(error, monkeypatch):
    def failing(_self):
        raise error

    expected = {at: told(alone(at)) for at in range(2)}
    monkeypatch.setattr(SharedDecode, "decode", failing)
    assert {at: told(result) for at, result in run(REQUESTS[:2]).items()} == expected


def test_a_batch_that_found_no_memory_lets_go_of_it_before_its_runs_start_again(monkeypatch):
    alive, at_start = [], []

    def counted(*args, **more):
        at_start.append(len(alive))
        alive.append(None)
        try:
            yield from compare(*args, **more)
        finally:
            alive.pop()

    def failing(self):
        self._parts, self._generations, self._tokens = [], [], []
        raise MemoryError

    monkeypatch.setattr(together, "compare", counted)
    monkeypatch.setattr(SharedDecode, "decode", failing)
    ended = compare_together([asked(0), asked(1), asked(2)], tiny_model("llama"))
    next(ended)
    assert at_start == [0, 0]
    next(ended)
    assert at_start == [0, 0, 0, 1, 0]
    next(ended)
    assert at_start == [0, 0, 0, 1, 0, 0]


def test_a_fault_of_the_code_is_raised(monkeypatch):
    def faulty(_self):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(SharedDecode, "decode", faulty)
    with pytest.raises(RuntimeError, match="shapes"):
        run([asked(0)])


def test_a_run_goes_on_only_once_its_rows_are_decoded():
    shared = SharedDecode(tiny_model("llama"))
    with pytest.raises(EngineError, match="before its rows"):
        [*compare(asked(0), tiny_model("llama"), shared=shared)]
