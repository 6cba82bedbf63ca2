"""Decode all variants of a comparison together, measure the first step, answer what follows."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, cast

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.diagnostics import analyse
from ckv_core.engine.first_step import (
    MeasuredStep,
    control_rows,
    measured_step,
    perturbations,
    rounding_floor,
)
from ckv_core.engine.generation import Draw, Generation, RunningRows, fetches_late, next_tokens
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.prompt import prompt_of
from ckv_core.engine.rows import PolicyRow, PromptRows
from ckv_core.engine.run import Run
from ckv_core.engine.select import Selection, held_bytes
from ckv_core.engine.teacher_forced import teacher_forced
from ckv_core.errors import EngineError, PromptError
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.agreement import agreement, answer_found, answer_scores, first_difference
from ckv_core.records.events import (
    FloorMeasured,
    FollowUpsAnswered,
    Progress,
    RunEvent,
    VariantAnalysed,
    VariantFinished,
    VariantMeasured,
)
from ckv_core.records.records import FollowUp, HeldSeries, PromptInfo, SampledText
from ckv_core.records.run_request import Repeats, RunRequest

_JUDGED = ("answered", "missed")


def generate(
    run: Run,
    prefilled: Prefill | None,
    rows: PromptRows,
    selections: list[Selection],
    bases: dict[int, Selection],
) -> Iterator[RunEvent]:
    """Read what was not compressed, measure the first decoding step, decode to the end.

    The requested diagnostics follow: quantities of the measured step at once, the full
    cache's text read by all variants and the follow-up questions at the end. `bases` has, per
    variant with CriticalKV, what it would keep without. Where `prefilled` is None there is no full
    cache, and nothing is measured against it.
    """
    request, loaded = run.request, run.loaded
    rest = list(run.prompt.token_ids[run.prompt.compressed_tokens :])
    capacity = len(rest) + max(request.max_new_tokens, 1)  # the measured step needs one
    controls = []
    if run.measures_floor and prefilled is not None:
        controls = control_rows(prefilled, run.rows, len(rest) + 1)
    parts = rows.start(capacity)
    context = DecodeContext(loaded, [*parts, *controls], run.should_stop)
    decoder = Decoder(loaded, context)
    yield Progress("decode", 0.0, "question" if rest else "first token")
    with run.stopwatch.measure("question"):
        logits = cast(Tensor, rows.logits)
        if rest:
            logits = decoder.read(rest)[: run.rows]
        tokens = next_tokens(logits)
    generation = Generation.of(loaded, run.rows, request)
    generation.append(tokens)
    next_logits = None
    if prefilled is not None:
        chosen = (selections, bases)
        next_logits = yield from _first_step(run, prefilled, rows, decoder, tokens, chosen)
    elif not request.decodes_again:
        rows.let_go()
    if request.max_new_tokens == 0:  # a sweep that only measures
        return
    yield generation.event(len(run.specs))
    yield from _decode(run, generation, decoder, tokens, next_logits)
    series = {
        part.row: part.series(len(generation.token_ids[part.row]))
        for part in parts
        if isinstance(part, PolicyRow)
    }
    del parts, context, decoder  # what follows has tails of its own
    yield from _finish(run, generation, series)
    if "forced" in request.analysis and (continuation := generation.token_ids[run.reference]):
        yield from teacher_forced(run, rows, continuation)
    yield from follow_ups(run, rows)
    yield from repetitions(run, rows, generation)


def _first_step(
    run: Run,
    prefilled: Prefill,
    rows: PromptRows,
    decoder: Decoder,
    tokens: list[int],
    chosen: tuple[list[Selection], dict[int, Selection]],
) -> Generator[RunEvent, None, Tensor | None]:
    """Measure the first decoding step of all rows; the controls have the places after theirs.

    Returns the logits after it, [rows, vocabulary], where it was every row's own step.
    """
    context, selections, bases = decoder.context, *chosen
    # Where all rows agree on the first token, the measured step is also their own next step.
    same = len(set(tokens)) == 1
    with run.stopwatch.measure("decode" if same else "measure"):
        step = measured_step(decoder, tokens[run.reference], run.reference, commit=same)
    if len(context.places) > run.rows:
        with run.stopwatch.measure("measure"):
            floor = rounding_floor(step, run.reference, run.rows)
        yield FloorMeasured(floor)
        context.parts = [part for part in context.parts if part.places[0] < run.rows]
        step = step.first(run.rows)
    held = held_bytes(prefilled, rows, context.parts, [*selections, *bases.values()])
    run.memory["held"] = max(held, run.memory.get("held", 0))  # of a sweep the largest group
    if not run.request.decodes_again:  # or what a row that stops leaves would be held twice
        rows.let_go()
    yield from _measured(run, step, decoder, prefilled, chosen)
    return step.logits if same else None


def _decode(
    run: Run,
    generation: Generation,
    decoder: Decoder,
    tokens: list[int],
    next_logits: Tensor | None,
) -> Iterator[RunEvent]:
    """Feed each running row its own tokens until all have stopped, or with those of other runs.

    `tokens` is the first of every row, `next_logits` [rows, vocabulary] what follows if those
    have been fed already.
    """
    if run.shared is not None:
        if next_logits is not None and generation.running:
            tokens = next_tokens(next_logits)
            generation.append(tokens)
        if generation.running:
            run.shared.join(decoder.context.parts, generation, tokens)
            yield Progress("decode", None, "with other prompts")
            if generation.running:
                raise EngineError("A run went on before its rows were decoded.")
        yield generation.event(len(run.specs))
        return
    max_new_tokens = run.request.max_new_tokens
    rows = RunningRows(decoder, [generation], tokens)
    waits = not fetches_late(run.loaded.device)
    while generation.running:
        with run.stopwatch.measure("decode", waits=waits):
            rows.step(next_logits)
            next_logits = None
        rows.append()
        if generation.due():
            yield generation.event(len(run.specs))
            longest = max(len(ids) for ids in generation.token_ids)
            detail = f"token {longest:,} of {max_new_tokens:,}"
            yield Progress("decode", longest / max_new_tokens, detail)


def _finish(
    run: Run, generation: Generation, series: dict[int, HeldSeries | None]
) -> Iterator[RunEvent]:
    full, is_there = run.reference, run.request.reference
    for row in range(len(run.specs)):
        if is_there and row != full and generation.stopped[full] == "eos":
            length = len(generation.token_ids[row]) / len(generation.token_ids[full])
            yield VariantAnalysed(row, {"length_ratio": np.array([length], np.float32)})
        yield VariantFinished(
            index=row,
            **_against(generation, row, full),
            answer_found=answer_found(generation.text(row), run.request.answer),
            answer_scores=answer_scores(generation.text(row), run.request.answer),
            held=series.get(row),
        )


def _against(generation: Generation, row: int, reference: int) -> dict[str, Any]:
    """How far a row's tokens are the full cache's; None for that itself, and without one."""
    if row == reference or reference == len(generation.token_ids):
        return {"agreement": None, "first_difference": None}
    ids, full = generation.token_ids[row], generation.token_ids[reference]
    return {"agreement": agreement(ids, full), "first_difference": first_difference(ids, full)}


def _measured(
    run: Run,
    step: MeasuredStep,
    decoder: Decoder,
    prefilled: Prefill,
    chosen: tuple[list[Selection], dict[int, Selection]],
) -> Iterator[RunEvent]:
    """Measure every row but the full cache's; `chosen` is what `choose` gives."""
    selections, bases = chosen
    kept = [(row, each, bases.get(row)) for row, each in enumerate(selections)]
    evicted = [each for each in kept if each[0] != run.reference]
    with run.stopwatch.measure("measure"):
        measured = list(perturbations(step, decoder, prefilled, run.reference, evicted))
    for row, perturbation in measured:
        yield VariantMeasured(row, perturbation)
    if "bounds" in run.request.analysis:
        yield from analyse(run, step, decoder, prefilled, selections)


def follow_up_prompts(
    tokenizer: PreTrainedTokenizerBase, request: RunRequest, prompt: PromptInfo
) -> list[PromptInfo]:
    """The prompt of each follow-up question, rendered as the first question's was.

    PromptError where the context would be tokenised otherwise with one of them, so that the
    compressed prompt would not be the same.
    """
    first = prompt.token_ids[: prompt.compressed_tokens]
    prompts = []
    for question in request.follow_ups:
        other = prompt_of(tokenizer, request, question=question)
        if other.token_ids[: other.compressed_tokens] != first:
            raise PromptError(
                f"The follow-up question {question[:60]!r} changes the tokens at the end of the "
                "context, so the same cache cannot serve it. End the context with a full stop, or "
                "ask a first question too."
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
            generation = Generation.of(run.loaded, run.rows, run.request)
            for _ in answer(run.loaded, rows, tail, generation, run.should_stop):
                pass
        for row, found in enumerate(answers):
            answered = FollowUp(
                question=question,
                text=generation.text(row),
                token_ids=tuple(generation.token_ids[row]),
                token_texts=generation.token_texts(row),
                stopped=generation.stopped[row] or "length",
                **_against(generation, row, run.reference),
            )
            found.append(answered)
            yield FollowUpsAnswered(row, tuple(found))


def repetitions(run: Run, rows: PromptRows, greedy: Generation) -> Iterator[RunEvent]:
    """Sample texts of every variant, from the rows as selection left them, all in one batch."""
    repeats, request = Repeats.parse(run.request.repeats), run.request
    tail = run.prompt.token_ids[run.prompt.compressed_tokens :]
    same: list[list[float]] = [[] for _ in run.specs]
    texts: list[list[SampledText]] = [[] for _ in run.specs]
    for number in range(repeats.count):
        counted = f"sampled text {number + 1} of {repeats.count}"
        yield Progress("analyse", number / repeats.count, counted)
        generation, draw = Generation.of(run.loaded, run.rows, request), Draw(repeats, number)
        with run.stopwatch.measure("repeats"):
            for _ in answer(run.loaded, rows, tail, generation, run.should_stop, draw):
                pass
        for row in range(len(run.specs)):
            same[row].append(agreement(generation.token_ids[row], greedy.token_ids[row]))
            text = generation.text(row)
            found = answer_found(text, request.answer)
            texts[row].append(SampledText(text, generation.stopped[row] or "length", found))
    for row, written in enumerate(texts if repeats.count else ()):
        right = [float(each.outcome == "answered") for each in written if each.outcome in _JUDGED]
        figures = {"sampled_agreement": np.mean(same[row])}
        if right:
            figures["sampled_answer"] = np.mean(right)
        if len(right) > 1:
            figures["sampled_spread"] = np.std(right, ddof=1)
        arrays = {name: np.array([value], np.float32) for name, value in figures.items()}
        yield VariantAnalysed(row, arrays, sampled_texts=tuple(written))


def answer(
    loaded: LoadedModel,
    rows: PromptRows,
    tail: Sequence[int],
    generation: Generation,
    should_stop: Callable[[], bool],
    draw: Draw | None = None,
) -> Iterator[None]:
    """Have rows read a question and generate; stops after every token.

    Rows stay as selection left them; `tail` is the question and what follows, if it was not
    compressed too. `draw` samples; without it the most likely tokens follow.
    """
    context = DecodeContext(loaded, rows.start(len(tail) + generation.left), should_stop)
    decoder = Decoder(loaded, context)
    logits = decoder.read(tail) if tail else cast(Tensor, rows.logits)
    running = RunningRows(decoder, [generation], next_tokens(logits, draw), draw)
    running.append()
    yield
    while generation.running:
        running.step()
        running.append()
        yield
