"""Further questions to the same evicted caches, each answered on fresh tails."""

from collections.abc import Callable, Iterator, Sequence

from transformers import PreTrainedTokenizerBase

from ckv_core.analysis.agreement import agreement, first_difference
from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.generation import Generation
from ckv_core.engine.prompt import build_prompt
from ckv_core.engine.rows import PromptRows
from ckv_core.engine.run import Run
from ckv_core.engine.running_rows import RunningRows, next_tokens
from ckv_core.errors import PromptError
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import FollowUpsAnswered, Progress, RunEvent
from ckv_core.results.records import FollowUp, PromptInfo


def follow_up_prompts(
    tokenizer: PreTrainedTokenizerBase, request: CompareRequest, prompt: PromptInfo
) -> list[PromptInfo]:
    """The prompt of each follow-up question, rendered as the first question's was.

    PromptError where the context would be tokenised otherwise with one of them, so that the
    compressed prompt would not be the same.
    """
    first = prompt.token_ids[: prompt.compressed_tokens]
    prompts = []
    for question in request.follow_ups:
        other = build_prompt(tokenizer, request.context, question, request.scenario)
        if other.token_ids[: other.compressed_tokens] != first:
            raise PromptError(
                f"The follow-up question {question[:60]!r} changes how the end of the context is "
                "cut into tokens, so the same cache cannot serve it; end the context with a full "
                "stop, or ask a first question too."
            )
        prompts.append(other)
    return prompts


def follow_ups(run: Run, rows: PromptRows) -> Iterator[RunEvent]:
    """Answer every follow-up question with every variant, from the rows as selection left them."""
    answers: list[list[FollowUp]] = [[] for _ in run.specs]
    prompts = run.follow_up_prompts
    for done, (question, prompt) in enumerate(zip(run.request.follow_ups, prompts, strict=True)):
        yield Progress("analyse", done / len(prompts), f"follow-up {done + 1} of {len(prompts)}")
        with run.stopwatch.measure("follow_ups"):
            tail = prompt.token_ids[prompt.compressed_tokens :]
            generation = _generation(run)
            for _ in answer(run.loaded, rows, tail, generation, run.should_stop):
                pass
        for row, found in enumerate(answers):
            found.append(_follow_up(question, generation, row, run.reference))
            yield FollowUpsAnswered(row, tuple(found))


def answer(
    loaded: LoadedModel,
    rows: PromptRows,
    tail: Sequence[int],
    generation: Generation,
    should_stop: Callable[[], bool],
) -> Iterator[None]:
    """Have rows read a question and generate; stops after every token.

    Rows stay as selection left them; `tail`, at least one token, is the question and what follows.
    """
    context = DecodeContext(loaded, rows.start(len(tail) + generation.left), should_stop)
    decoder = Decoder(loaded, context)
    running = RunningRows(decoder, generation, next_tokens(decoder.read(tail)))
    generation.append(running.tokens)
    yield
    while generation.running:
        running.step()
        generation.append(running.tokens)
        yield


def _generation(run: Run) -> Generation:
    loaded, request = run.loaded, run.request
    end_tokens = frozenset() if request.ignore_eos else loaded.eos_token_ids
    return Generation(loaded.tokenizer, run.rows, request.max_new_tokens, end_tokens)


def _follow_up(question: str, generation: Generation, row: int, reference: int) -> FollowUp:
    ids, full = generation.token_ids[row], generation.token_ids[reference]
    is_reference = row == reference
    return FollowUp(
        question=question,
        text=generation.text(row),
        token_ids=tuple(ids),
        token_texts=generation.token_texts(row),
        stopped=generation.stopped[row] or "length",
        agreement=None if is_reference else agreement(ids, full),
        first_difference=None if is_reference else first_difference(ids, full),
    )
