"""Several comparisons whose rows are decoded in one batch, such as a study's samples."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field

from ckv_core.engine.compare import compare
from ckv_core.engine.generation import SharedDecode
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.run import GROUP_ROWS
from ckv_core.errors import (
    OUT_OF_MEMORY,
    CkvError,
    NoRoomError,
    is_out_of_memory,
)
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.events import Outcome, RunEvent, RunResult
from ckv_core.records.run_request import RunRequest

# Reading a longer prompt takes a CPU seconds to minutes, and decoding it with others saves little.
GROUP_TOKENS = 4_096
_GROWTH = 4  # the rows of a batch, at most, to those that are done: an early stop loses few


def compare_together(
    requests: Iterable[RunRequest],
    loaded: LoadedModel,
    prefills: PrefillCache | None = None,
) -> Iterator[Outcome]:
    """Run comparisons one after another, but decode their rows together.

    Each goes on until its rows are to be decoded. All that wait are decoded in one batch once
    `GROUP_ROWS` rows wait, or on a CPU prompts of `GROUP_TOKENS` tokens together, or nothing else
    is to do. The first comparison is a batch of its own and the next batches grow. So what a kill
    loses is bounded, by counts that are the same in each run. What finds no room beside others, or
    fails in a batch, is run again alone.

    Yields (place of the request, its result or why it has none) in the order in which they end;
    the time of decoding together is in no result's timings. `requests`: the next one is taken only
    when it can begin.
    """
    return _Together(loaded, prefills).run(requests)


@dataclass(frozen=True, slots=True)
class _Run:
    place: int
    request: RunRequest
    events: Generator[RunEvent]
    result: RunResult = field(default_factory=RunResult)


class _Together:
    def __init__(self, loaded: LoadedModel, prefills: PrefillCache | None) -> None:
        self._loaded, self._prefills = loaded, prefills
        self._shared = SharedDecode(loaded)
        self._waiting: list[_Run] = []
        self._done = 0  # rows

    def run(self, requests: Iterable[RunRequest]) -> Iterator[Outcome]:
        for place, request in enumerate(requests):
            yield from self._go_on(self._begun(place, request, self._shared))
            while self._waiting and (
                self._shared.rows >= min(GROUP_ROWS, _GROWTH * self._done)
                or self._waiting_tokens() >= GROUP_TOKENS
            ):
                yield from self._decode()
        while self._waiting:
            yield from self._decode()

    def _waiting_tokens(self) -> int:
        """Tokens of the prompts whose rows wait; 0 where long prompts need not be decoded alone."""
        prompts = [run.result.prompt for run in self._waiting if self._loaded.device.type == "cpu"]
        return sum(prompt.tokens for prompt in prompts if prompt)

    def _begun(self, place: int, request: RunRequest, shared: SharedDecode | None) -> _Run:
        events = compare(request, self._loaded, prefills=self._prefills, shared=shared)
        return _Run(place, request, events)

    def _go_on(self, run: _Run) -> Iterator[Outcome]:
        """Until the run ends or its rows wait."""
        before = self._shared.rows
        outcome: RunResult | CkvError = run.result
        try:
            for event in run.events:
                run.result.apply(event)
                if self._shared.rows > before:
                    self._waiting.append(run)
                    return
        except (CkvError, MemoryError, RuntimeError) as error:
            outcome = _expected(error)
        lacks_room = isinstance(outcome, NoRoomError) or str(outcome) == OUT_OF_MEMORY
        if self._waiting and lacks_room:
            while self._waiting:
                yield from self._decode()
            yield from self._go_on(self._begun(run.place, run.request, self._shared))
        else:
            yield run.place, outcome

    def _decode(self) -> Iterator[Outcome]:
        """All that wait, and each to where it waits again or ends."""
        waiting, self._waiting = self._waiting, []
        self._done += self._shared.rows
        failed = False
        try:
            self._shared.decode()
        except (CkvError, MemoryError, RuntimeError) as error:
            _expected(error)
            failed = True  # acted on outside, where no traceback holds what the batch held
        if not failed:
            for run in waiting:
                yield from self._go_on(run)
            return
        again = [(run.place, run.request) for run in waiting]
        for run in waiting:
            run.events.close()
        for place, request in again:
            yield from self._go_on(self._begun(place, request, None))


def _expected(error: Exception) -> CkvError:
    """Returns an error that ends one run, for a reader; others are raised."""
    if is_out_of_memory(error):
        return CkvError(OUT_OF_MEMORY)
    if not isinstance(error, CkvError):
        raise error
    return error
