"""Counting tokens in a process of its own, which is replaced when a count hangs. No torch.

A tokenizer's chat template is a program from a repository: it may loop for ever. It must not do so
beside a run, nor hold up the counts of others.
"""

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Protocol

from ckv_core.errors import CkvError, ModelError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.worker.messages import CountTokens, Reply, TokensCounted, Within
from ckv_core.worker.process import WorkerProcess, make_runner, serve_until_the_end
from ckv_core.worker.serve import Channel, sentence_of

COUNT_RUNNER = "ckv_core.worker.count_runner:CountRunner"
TRIES = 2  # processes that one count may lose; others may have been the cause
MAX_WAITING = 64
REFUSED_S = 600.0  # a model whose count hung is not tried again for so long
Steps = Callable[[str, float | None], None]


class Counter(Protocol):
    """What the counting process needs; `count_runner.CountRunner` is the real one."""

    def count_tokens(self, request: CompareRequest, step: Steps) -> tuple[int, int, int, int]:
        """Prompt tokens, compressed tokens, context limit, and tokens behind the context.

        Called from several threads at once; of the compressed tokens those behind the context.

        `step` is told what is done next, as a sentence's beginning, and how long it may take.
        """


@dataclass(slots=True)
class _Asked:
    """A count that is not answered yet."""

    query: CountTokens
    answer: Future[TokensCounted] = field(default_factory=Future)
    timer: threading.Timer | None = None
    lost: int = 0

    def give(self, error: str, *, is_busy: bool = False) -> None:
        if not self.answer.done():
            none = TokensCounted(self.query.query_id, 0, 0, 0, error, is_busy=is_busy)
            self.answer.set_result(none)

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class TokenCounter:
    """The app's side: any thread may ask; the process starts with the first question."""

    def __init__(self, counter: str = COUNT_RUNNER) -> None:
        """Start nothing yet; `module:attribute` of the Counter is imported in the child only."""
        self._counter = counter
        self._lock = threading.RLock()
        self._process: WorkerProcess | None = None
        self._asked: dict[str, _Asked] = {}
        self._refused: dict[str, tuple[float, str]] = {}
        self._closed = False

    def ask(self, request: CompareRequest) -> Future[TokensCounted]:
        """Ask; failure is in the answer's `error`. Whoever cancels it gives the answer up."""
        asked = _Asked(CountTokens(uuid.uuid4().hex, request))
        with self._lock:
            refusal = self._refusal(request.model)
            if refusal:
                asked.give(refusal)
            elif len(self._asked) >= MAX_WAITING:
                asked.give("Many counts are waiting; the run will count again.", is_busy=True)
            else:
                self._asked[asked.query.query_id] = asked
                self._send(asked)
        return asked.answer

    def count(self, request: CompareRequest, timeout_s: float) -> TokensCounted:
        """Ask and wait. Failure is in the answer's `error`."""
        answer = self.ask(request)
        try:
            return answer.result(timeout_s)
        except TimeoutError:  # its own limit may be longer; that still ends the process
            with self._lock:
                if not answer.cancel():
                    return answer.result()
            told = f"Counting took longer than {timeout_s:g} s; the run will count again."
            return TokensCounted("", 0, 0, 0, told, is_busy=True)

    def close(self) -> None:
        """End the process; whoever waits is told."""
        with self._lock:
            self._closed = True
            for asked in self._asked.values():
                asked.disarm()
                asked.give("The app is closing.")
            self._asked.clear()
            process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _refusal(self, model: str) -> str:
        self._refused = {n: r for n, r in self._refused.items() if time.monotonic() < r[0]}
        if model in self._refused:
            return self._refused[model][1]
        if self._closed:
            return "The app is closing."
        return ""

    def _send(self, asked: _Asked) -> None:
        if self._process is None:
            try:
                self._process = WorkerProcess(
                    partial(counter_main, counter=self._counter), self._take, self._replace
                )
            except Exception as error:  # no process, no thread, no memory
                del self._asked[asked.query.query_id]
                asked.give(f"The process that counts could not be started ({error}).")
                return
        self._process.send(asked.query)

    def _take(self, process: WorkerProcess, reply: Reply) -> None:
        """One reply, in the process's reading thread."""
        with self._lock:
            if process is not self._process:
                return
            if isinstance(reply, TokensCounted):
                asked = self._asked.pop(reply.query_id, None)
                if asked is not None:
                    asked.disarm()
                    if not asked.answer.done():
                        asked.answer.set_result(reply)
            elif isinstance(reply, Within) and reply.job_id in self._asked:
                asked = self._asked[reply.job_id]
                asked.disarm()
                if reply.limit_s is not None:
                    asked.timer = threading.Timer(reply.limit_s, self._end, (process, reply))
                    asked.timer.daemon = True
                    asked.timer.start()

    def _end(self, process: WorkerProcess, step: Within) -> None:
        """A count is over its time: refuse its model for a while and replace the process."""
        with self._lock:
            asked = self._asked.get(step.job_id)
            if process is not self._process or asked is None:
                return
            model = asked.query.request.model
            sentence = (
                f"{step.what} took longer than {step.limit_s:,.0f} s, so it was ended; check the "
                f"files of {model!r}, its chat template above all, or choose another model."
            )
            self._refused[model] = (time.monotonic() + REFUSED_S, sentence)
            for each in [a for a in self._asked.values() if a.query.request.model == model]:
                del self._asked[each.query.query_id]
                each.disarm()
                each.give(sentence)
        process.kill()

    def _replace(self, process: WorkerProcess) -> None:
        """The process is gone: ask another one what is still open."""
        with self._lock:
            if process is not self._process:
                return
            self._process = None
            reason = process.exit_reason()
            for asked in list(self._asked.values()):
                asked.disarm()
                asked.lost += 1
                if asked.lost >= TRIES or asked.answer.done():
                    del self._asked[asked.query.query_id]
                    asked.give(f"{reason[0].upper()}{reason[1:]} while it counted; try again.")
                else:
                    self._send(asked)


def counter_main(connection: Connection, counter: str) -> None:
    """Entry of the child that counts; returns never."""
    serve_until_the_end("counter", lambda: serve_counts(connection, make_runner(counter)))


def serve_counts(channel: Channel, counter: Counter) -> None:
    """Answer each question in a thread of its own, until the other end is gone."""
    sending = threading.Lock()

    def send(reply: Reply) -> None:
        with sending:
            channel.send(reply)

    def answer(query: CountTokens) -> None:
        def step(what: str, limit_s: float | None) -> None:
            send(Within(query.query_id, what, limit_s))

        try:
            tokens, compressed, limit, question = counter.count_tokens(query.request, step)
            counted = TokensCounted(
                query.query_id, tokens, compressed, limit, question_tokens=question
            )
        except Exception as error:
            sentence = sentence_of(error, "Counting tokens")
            for_good, field = False, ""
            if isinstance(error, CkvError):
                for_good = error.for_good
                field = "model" if isinstance(error, ModelError) else error.field
            counted = TokensCounted(query.query_id, 0, 0, 0, sentence, for_good, field=field)
        send(counted)

    while True:
        try:
            query = channel.recv()
        except (EOFError, OSError):
            return
        if isinstance(query, CountTokens):
            threading.Thread(target=answer, args=(query,), name="count", daemon=True).start()
