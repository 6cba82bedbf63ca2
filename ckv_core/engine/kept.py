"""Compress once, ask many: keep the cache of one variant in a file, and answer from such a file."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import torch

from ckv_core.base.stopwatch import Stopwatch
from ckv_core.base.whole_file import write_whole
from ckv_core.engine.cache.kept import KeptCache, read_cache, write_cache
from ckv_core.engine.choose import choose, resolved, row_plan
from ckv_core.engine.compare import check_length, environment, prepare, read_prompt
from ckv_core.engine.generate import answer
from ckv_core.engine.generation import Generation
from ckv_core.engine.memory import check_memory
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.prompt import build_prompt
from ckv_core.engine.rows import prompt_rows
from ckv_core.engine.select import receipt
from ckv_core.errors import ConfigError, PromptError
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.events import Progress, RunEvent, RunFinished
from ckv_core.records.kept_caches import KeptRecord
from ckv_core.records.work_requests import AskRequest, KeepRequest


@torch.inference_mode()
def keep(
    request: KeepRequest,
    loaded: LoadedModel,
    should_stop: Callable[[], bool] = lambda: False,
    prefills: PrefillCache | None = None,
) -> Iterator[RunEvent]:
    """Compress a context as a comparison does, and write what is left of it.

    Yields:
        Progress, and RunFinished once the file is whole.

    Raises:
        CkvError: the request, the prompt, the model or the disk does not allow it.
        RunCancelledError: should_stop returned true; there is no file then.
    """
    run, prefills = prepare(request.comparison(), loaded, should_stop), prefills or PrefillCache(0)
    if run.specs[0].store.reads_part:
        label = run.specs[0].label
        raise ConfigError(
            f"{label} saves no memory, so its cache is not kept; choose another method."
        )
    check_memory(run, prefills)
    prefilled = None
    if not run.reading_in_blocks:
        prefilled = yield from read_prompt(run, prefills)
    yield Progress("select", None, run.specs[0].spec)
    (spec,), info = run.specs, loaded.info
    not_measured = frozenset({spec.base().settings()} if spec.critical else ())
    (selection,), _ = yield from choose(run, prefilled, not_measured)
    read = prefilled or cast(Prefill, selection.own)
    rows = prompt_rows(read, [row_plan(spec, selection, read)])
    record = KeptRecord(
        model=info,
        spec=spec.spec,
        label=spec.label,
        params=resolved(run, spec, selection),
        compressed_tokens=read.prompt_len,
        receipt=receipt(selection, info, rows, 0),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=environment(),
    )
    token_ids = run.prompt.token_ids[: read.prompt_len]
    cache = KeptCache(record, run.request.context, token_ids, rows)
    prefills.trim()
    yield Progress("select", None, "writing the file")
    path = Path(request.path)
    if path.exists():
        raise ConfigError(f"A cache {path.stem!r} is kept already; choose another name.")
    write_whole(path, lambda beside: write_cache(beside, cache, selection.keep_masks))
    yield RunFinished(dict(run.stopwatch.timings_ms))


@torch.inference_mode()
def ask(
    request: AskRequest, loaded: LoadedModel, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[RunEvent]:
    """Answer a question from the cache in a file, which stays as it is.

    Yields:
        Progress and Generated, of one row; RunFinished is the last.

    Raises:
        CkvError: the file, the question or the model does not allow it.
        RunCancelledError: should_stop returned true.
    """
    request.validate()
    stopwatch = Stopwatch(loaded.device)
    yield Progress("load", None, "reading the cache")
    with stopwatch.measure("read"):
        cache = read_cache(Path(request.path), loaded)
    tail = question_tokens(cache, request, loaded)
    yield Progress("decode", 0.0, "question")
    generation, limit = Generation.of(loaded, 1, request), request.max_new_tokens
    with stopwatch.measure("decode"):
        for _ in answer(loaded, cache.rows, tail, generation, should_stop):
            if generation.due():
                done = len(generation.token_ids[0])
                yield generation.event(1)
                yield Progress("decode", done / limit, f"token {done:,} of {limit:,}")
    yield RunFinished(dict(stopwatch.timings_ms))


def question_tokens(cache: KeptCache, request: AskRequest, loaded: LoadedModel) -> tuple[int, ...]:
    """Returns what is read after the context; PromptError where that's own tokens would change."""
    prompt = build_prompt(loaded.tokenizer, cache.context, request.question, "context-only")
    if prompt.token_ids[: prompt.compressed_tokens] != cache.token_ids:
        raise PromptError(
            "With this question, or with this tokenizer, the context is cut into other tokens than "
            "those of the kept cache. Begin the question with a letter, or keep the context again."
        )
    check_length(prompt.tokens, request.max_new_tokens, loaded.info.context_limit)
    return prompt.token_ids[prompt.compressed_tokens :]
