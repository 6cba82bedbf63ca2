"""Load the model, run a request, show progress, write JSON."""

import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckv_core.config import CompareRequest
from ckv_core.errors import OUT_OF_MEMORY, CkvError, is_out_of_memory
from ckv_core.events import Progress, RunFinished, RunResult
from ckv_core.records import PromptInfo

if TYPE_CHECKING:  # `methods` must not load torch
    from ckv_core.modeling.loaded import LoadedModel


def load(request: CompareRequest) -> tuple["LoadedModel", float]:
    """The model of a request, and the milliseconds that loading took."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from ckv_core.modeling.loading import load_model

    start = time.perf_counter()

    def report(sentence: str) -> None:
        show_progress(Progress("load", None, sentence))

    loaded = load_model(request.model, request.device, request.dtype, report=report)
    return loaded, (time.perf_counter() - start) * 1000


def tokenised(request: CompareRequest, loaded: "LoadedModel") -> PromptInfo:
    """The prompt of a request as the model reads it."""
    from ckv_core.engine.prompt import build_prompt

    return build_prompt(loaded.tokenizer, request.context, request.question, request.scenario)


def run(request: CompareRequest, loaded: "LoadedModel", load_ms: float) -> RunResult:
    """The whole result; the load time joins its timings.

    Raises:
        CkvError: the request cannot be served; out of memory is one too.
    """
    from ckv_core.engine.compare import compare

    result = RunResult()
    try:
        for event in compare(request, loaded):
            result.apply(event)
            if isinstance(event, Progress):
                show_progress(event)
            elif isinstance(event, RunFinished):
                result.timings_ms = {"load": load_ms, **event.timings_ms}
    except (MemoryError, RuntimeError) as error:  # torch has no class of its own on the CPU
        if is_out_of_memory(error):
            raise CkvError(OUT_OF_MEMORY) from None
        raise
    clear_progress()
    return result


def show_progress(event: Progress) -> None:
    """One line that is overwritten; only on a terminal."""
    if sys.stderr.isatty():
        share = "" if event.fraction is None else f" {event.fraction:4.0%}"
        print(f"\r\033[K{event.stage}{share} {event.detail}"[:200], end="", file=sys.stderr)


def clear_progress() -> None:
    """Remove the progress line."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)


def deliver(
    path: str | None, documents: Callable[[], Sequence[Any]], show: Callable[[], None]
) -> None:
    """Write what --json asks for, then print the tables unless the JSON went to stdout.

    The file comes first, for a closed pipe ends the printing; the tables come also where it
    could not be written.

    Raises:
        CkvError: the file cannot be written.
    """
    try:
        if path is not None:
            _write_json(documents(), path)
    finally:
        if path != "-":
            show()


def _write_json(documents: Sequence[Any], path: str) -> None:
    """One JSON document a line, to a file or, for `-`, to stdout.

    Raises:
        CkvError: the file cannot be written.
    """
    text = "\n".join(json.dumps(document, allow_nan=False) for document in documents)
    if path == "-":
        print(text)
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise CkvError(f"{path!r} cannot be written: {error.strerror or error}.") from None
