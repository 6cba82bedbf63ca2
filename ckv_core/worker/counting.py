"""Counts tokens in a process of its own, which is replaced when a count hangs. No torch.

A tokenizer's chat template is a program from a repository: it may loop for ever, also where nothing
but the end of its process stops it. So it may not do so beside a run.
"""

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ckv_core.errors import PromptError
from ckv_core.models.steps import Report, Step
from ckv_core.records.events import TokensCounted
from ckv_core.records.run_request import RunRequest
from ckv_core.records.work_requests import WorkRequest
from ckv_core.worker.messages import Job, JobEnd, JobEvent, Reply

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ckv_core.records.records import PromptInfo

COUNT_RUNNER = "ckv_core.worker.counting:CountRunner"
TRIES = 2  # processes that one count may lose; the system may have ended them
KEPT_TOKENIZERS = 4
COUNT_S = 15.0
CHARACTERS_PER_S = 50_000
CLOSE_S = 1.0
CUTS = 8  # cuts that may be tried until the beginning of a text fits
CLOSING = "The app is closing."


class TokenCounter:
    """The app's side, for any thread; the process starts with the first count."""

    def __init__(self, make_client: Callable[..., Any]) -> None:
        """Start nothing yet; `make_client` gives a WorkerClient that runs `CountRunner`."""
        self._make_client = make_client
        self._lock = threading.RLock()
        self._client: Any = None
        self._closed = False

    def ask(self, request: RunRequest, owner: str | None = None) -> Future[TokensCounted]:
        """Count; failure is in the answer's `error`. Cancel the answer to give it up."""
        answer: Future[TokensCounted] = Future()
        with self._lock:
            if self._closed:
                answer.set_result(TokensCounted(error=CLOSING))
            else:
                if self._client is None:
                    self._client = self._make_client(lambda _: None)
                    self._client.start()
                job = Job(uuid.uuid4().hex, request, owner, TRIES)
                self._client.submit(job, partial(_take, answer))
        return answer

    def count(
        self, request: RunRequest, timeout_s: float = 30.0, owner: str | None = None
    ) -> TokensCounted:
        """Count and wait. Failure is in the answer's `error`."""
        answer = self.ask(request, owner)
        try:
            return answer.result(timeout_s)
        except TimeoutError:  # its own limit may be longer; that still ends the process
            if not answer.cancel():
                return answer.result()
            sentence = f"Counting took longer than {timeout_s:g} s; the run will count again."
            return TokensCounted(error=sentence)

    def close(self) -> None:
        """End the process, and every count with a sentence."""
        with self._lock:
            self._closed = True
            client = self._client
        if client is not None:
            client.close(CLOSE_S)


def _take(answer: Future[TokensCounted], reply: Reply) -> None:
    """One reply about a count, in the client's thread."""
    if isinstance(reply, JobEvent) and isinstance(reply.event, TokensCounted):
        _give(answer, reply.event)
    elif isinstance(reply, JobEnd):
        reason = reply.reason or CLOSING
        _give(answer, TokensCounted(error=reason, for_good=reply.for_good, field=reply.field))


def _give(answer: Future[TokensCounted], counted: TokensCounted) -> None:
    """Answer who still waits; who gave it up may do so at the same moment."""
    if not answer.done() and answer.set_running_or_notify_cancel():
        answer.set_result(counted)


class CountRunner:
    """Counts with tokenizers, without models; see `serve.Runner`."""

    act = "Counting tokens"

    def __init__(self) -> None:
        import ckv_core.models.loading  # noqa: F401 - takes seconds, and is no part of a count's time

        self._kept: OrderedDict[str, tuple[PreTrainedTokenizerBase, int]] = OrderedDict()

    def load(self, model: str, _device: str, _dtype: str, report: Report) -> str:
        """Have its tokenizer and context limit; may fetch what is needed for that, no weights."""
        from ckv_core.models import loading
        from ckv_core.models.checkpoint import find_checkpoint
        from ckv_core.models.geometry import context_limit

        if model not in self._kept:
            checkpoint = loading.kept_conversion(find_checkpoint(model, report, with_weights=False))
            limit_s = loading.header_limit_s(checkpoint)
            report(Step(f"Reading the tokenizer of {model!r}.", limit_s=limit_s))
            limit = context_limit(loading.read_config(checkpoint)) or 0
            self._kept[model] = (loading.read_tokenizer(checkpoint), limit)
        self._kept.move_to_end(model)
        while len(self._kept) > KEPT_TOKENIZERS:
            self._kept.popitem(last=False)
        return "to count"

    def prompt_limit_s(self, request: WorkRequest) -> float:
        """Short, as others wait behind it; a long text has its time."""
        characters = 0
        if isinstance(request, RunRequest):
            characters = len(request.context) + len(request.question)
        return COUNT_S + characters / CHARACTERS_PER_S

    def run(self, request: WorkRequest, _: Callable[[], bool]) -> Iterator[TokensCounted]:
        """Tokens of a comparison's prompt."""
        from ckv_core.engine.prompt import prompt_of

        if not isinstance(request, RunRequest):
            raise PromptError("Only the prompt of a comparison has tokens to be counted.")
        tokenizer, limit = self._kept[request.model]
        prompt = prompt_of(tokenizer, request)
        counted = TokensCounted(
            prompt.tokens, prompt.compressed_tokens, limit, len(prompt.question)
        )
        if limit and prompt.tokens + request.max_new_tokens > limit:
            tokens, chars = first_that_fits(tokenizer, request, prompt, limit)
            counted = replace(counted, first_tokens=tokens, first_chars=chars)
        yield counted

    def release(self) -> None:
        """Forget all tokenizers, after memory ran out."""
        self._kept.clear()


def first_that_fits(
    tokenizer: "PreTrainedTokenizerBase", request: RunRequest, prompt: "PromptInfo", limit: int
) -> tuple[int, int]:
    """How much of the beginning of a context fits into the model's limit, as tokens and characters.

    A text that is cut may end in other tokens than the whole one had there, so each cut is counted
    again; both are 0 where nothing of it fits beside the question and the new tokens.
    """
    from ckv_core.engine.prompt import prompt_of

    context, cut = request.context, prompt
    for tries in range(CUTS):
        over = cut.tokens + request.max_new_tokens - limit
        first, end = cut.context_tokens
        if over <= 0:
            return end - first, len(context)
        kept = end - over - tries  # a character of several tokens goes with all of them
        if kept <= first:
            break
        context = context[: len(context) - len("".join(cut.pieces[kept:end]))]
        if not context.strip():
            break
        cut = prompt_of(tokenizer, request, context=context)
    return 0, 0
