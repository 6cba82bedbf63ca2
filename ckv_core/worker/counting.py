"""Counts tokens in a process of its own, which is replaced when a count hangs. No torch.

A tokenizer's chat template is a program from a repository: it may loop for ever. It must not do so
beside a run, nor hold up the counts of others.
"""

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Protocol

from ckv_core.errors import CkvError, ModelError
from ckv_core.records.run_request import RunRequest
from ckv_core.worker.messages import CountTokens, Deadline, Reply, TokensCounted
from ckv_core.worker.process import WorkerProcess, make_runner, serve_until_the_end
from ckv_core.worker.serve import sentence_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COUNT_RUNNER = "ckv_core.worker.counting:CountRunner"
TRIES = 2  # processes that one count may lose; others may have been the cause
MAX_WAITING = 64
REFUSED_S = 600.0  # a model whose count hung is not tried again for so long
KEPT_TOKENIZERS = 4
COUNT_S = 15.0
CHARACTERS_PER_S = 50_000
CLOSING = "The app is closing."
Steps = Callable[[str, float | None], None]


@dataclass(slots=True)
class _Pending:
    """A count that is not answered yet."""

    query: CountTokens
    answer: Future[TokensCounted] = field(default_factory=Future)
    timer: threading.Timer | None = None
    lost: int = 0

    def give(self, reply: TokensCounted | str, *, is_busy: bool = False) -> None:
        """Answer with what was counted, or with the sentence of an error."""
        self.disarm()
        if isinstance(reply, str):
            reply = TokensCounted(self.query.query_id, 0, 0, 0, reply, is_busy=is_busy)
        if not self.answer.done():
            self.answer.set_result(reply)

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class TokenCounter:
    """The app's side, for any thread; the process starts with the first count."""

    def __init__(self, counter: str = COUNT_RUNNER) -> None:
        """Start nothing yet; `module:attribute` of the Counter is imported in the child only."""
        self._main = partial(counter_main, counter=counter)
        self._lock = threading.RLock()
        self._process: WorkerProcess | None = None
        self._pending: dict[str, _Pending] = {}
        self._refused: dict[str, tuple[float, str]] = {}
        self._closed = False

    def ask(self, request: RunRequest) -> Future[TokensCounted]:
        """Count; failure is in the answer's `error`. Cancel the answer to give it up."""
        count = _Pending(CountTokens(uuid.uuid4().hex, request))
        with self._lock:
            now = time.monotonic()
            self._refused = {name: kept for name, kept in self._refused.items() if now < kept[0]}
            if self._closed:
                count.give(CLOSING)
            elif request.model in self._refused:
                count.give(self._refused[request.model][1])
            elif len(self._pending) >= MAX_WAITING:
                count.give("Many counts are waiting; the run will count again.", is_busy=True)
            else:
                self._pending[count.query.query_id] = count
                self._send(count)
        return count.answer

    def count(self, request: RunRequest, timeout_s: float) -> TokensCounted:
        """Count and wait. Failure is in the answer's `error`."""
        answer = self.ask(request)
        try:
            return answer.result(timeout_s)
        except TimeoutError:  # its own limit may be longer; that still ends the process
            with self._lock:
                if not answer.cancel():
                    return answer.result()
            sentence = f"Counting took longer than {timeout_s:g} s; the run will count again."
            return TokensCounted("", 0, 0, 0, sentence, is_busy=True)

    def close(self) -> None:
        """End the process, and every count with a sentence."""
        with self._lock:
            self._closed = True
            for count in self._pending.values():
                count.give(CLOSING)
            self._pending.clear()
            process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _send(self, count: _Pending) -> None:
        if self._process is None:
            try:
                self._process = WorkerProcess(self._main, self._take, self._replace)
            except Exception as error:  # no process, no thread, no memory
                del self._pending[count.query.query_id]
                count.give(f"The process that counts could not be started ({error}).")
                return
        self._process.send(count.query)

    def _take(self, process: WorkerProcess, reply: Reply) -> None:
        """One reply, in the process's reading thread."""
        with self._lock:
            if process is not self._process:
                return
            if isinstance(reply, TokensCounted) and reply.query_id in self._pending:
                self._pending.pop(reply.query_id).give(reply)
            elif isinstance(reply, Deadline) and reply.job_id in self._pending:
                count = self._pending[reply.job_id]
                count.disarm()
                if reply.limit_s is not None:
                    count.timer = threading.Timer(reply.limit_s, self._end, (process, reply))
                    count.timer.daemon = True
                    count.timer.start()

    def _end(self, process: WorkerProcess, step: Deadline) -> None:
        """A count is over its time: refuse its model for a while and replace the process."""
        with self._lock:
            if process is not self._process or step.job_id not in self._pending:
                return
            model = self._pending[step.job_id].query.request.model
            sentence = (
                f"{step.what} took longer than {step.limit_s:,.0f} s, so it was ended; check the "
                f"files of {model!r}, its chat template above all, or choose another model."
            )
            self._refused[model] = (time.monotonic() + REFUSED_S, sentence)
            for name, count in list(self._pending.items()):
                if count.query.request.model == model:
                    self._pending.pop(name).give(sentence)
        process.kill()

    def _replace(self, process: WorkerProcess) -> None:
        """The process is gone: give what is still open to another one."""
        with self._lock:
            if process is not self._process:
                return
            self._process = None
            reason = process.exit_reason()
            for name, count in list(self._pending.items()):
                count.disarm()
                count.lost += 1
                if count.lost >= TRIES or count.answer.done():
                    self._pending.pop(name).give(
                        f"{reason[0].upper()}{reason[1:]} while it counted; try again."
                    )
                else:
                    self._send(count)


# --- in the child -------------------------------------------------------------------------------


class Counter(Protocol):
    """What the counting process needs; `CountRunner` is the real one."""

    def count_tokens(self, request: RunRequest, step: Steps) -> tuple[int, int, int, int]:
        """Prompt tokens, compressed tokens, context limit, and tokens behind the context.

        Called from several threads at once. `step` gets what is done next, as a sentence's
        beginning, and how long it may take.
        """


@dataclass(slots=True)
class _Kept:
    """A tokenizer, which serves one thread at a time."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    tokenizer: "PreTrainedTokenizerBase | None" = None
    limit: int = 0


class CountRunner:
    """Counts with tokenizers, without models; see `Counter`."""

    def __init__(self) -> None:
        import ckv_core.models.loading  # noqa: F401 - takes seconds, and is no part of a count's time

        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def count_tokens(self, request: RunRequest, step: Steps) -> tuple[int, int, int, int]:
        """Needs no weights; the first count of a model may fetch its tokenizer."""
        from ckv_core.engine.prompt import build_prompt

        with self._lock:
            kept = self._kept.setdefault(request.model, _Kept())
            self._kept.move_to_end(request.model)
            while len(self._kept) > KEPT_TOKENIZERS:
                self._kept.popitem(last=False)
        with kept.lock:
            tokenizer = kept.tokenizer or self._read(kept, request.model, step)
            characters = len(request.context) + len(request.question)
            step("Counting the prompt's tokens", COUNT_S + characters / CHARACTERS_PER_S)
            prompt = build_prompt(tokenizer, request.context, request.question, request.scenario)
        return prompt.tokens, prompt.compressed_tokens, kept.limit, len(prompt.question)

    def _read(self, kept: _Kept, model: str, step: Steps) -> "PreTrainedTokenizerBase":
        from ckv_core.models.checkpoint import find_checkpoint
        from ckv_core.models.geometry import context_limit
        from ckv_core.models.loading import (
            header_limit_s,
            kept_conversion,
            read_config,
            read_tokenizer,
        )
        from ckv_core.models.steps import silent

        checkpoint = find_checkpoint(model, silent, with_weights=False)  # may have to wait
        checkpoint = kept_conversion(checkpoint)
        step(f"Reading the tokenizer of {model!r}", header_limit_s(checkpoint))
        kept.limit = context_limit(read_config(checkpoint)) or 0
        kept.tokenizer = tokenizer = read_tokenizer(checkpoint)
        return tokenizer


def counter_main(connection: Connection, counter: str) -> None:
    """Entry of the child that counts; returns never."""
    serve_until_the_end("counter", lambda: _serve_counts(connection, make_runner(counter)))


def _serve_counts(connection: Connection, counter: Counter) -> None:
    """Answer each query in a thread of its own, until the other end is gone."""
    sending = threading.Lock()

    def send(reply: Reply) -> None:
        with sending:
            connection.send(reply)

    def answer(query: CountTokens) -> None:
        name = query.query_id
        try:
            tokens, compressed, limit, question = counter.count_tokens(
                query.request, lambda what, limit_s: send(Deadline(name, what, limit_s))
            )
            send(TokensCounted(name, tokens, compressed, limit, question_tokens=question))
        except Exception as error:
            for_good = isinstance(error, CkvError) and error.for_good
            at = error.field if isinstance(error, CkvError) else ""
            at = "model" if isinstance(error, ModelError) else at
            sentence = sentence_of(error, "Counting tokens")
            send(TokensCounted(name, 0, 0, 0, sentence, for_good, field=at))

    while True:
        try:
            query = connection.recv()
        except (EOFError, OSError):
            return
        threading.Thread(target=answer, args=(query,), name="count", daemon=True).start()
