"""Load the model, run a request, show progress, write JSON."""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckv_core.base.percent import percent
from ckv_core.base.terminal import say, show_line
from ckv_core.errors import OUT_OF_MEMORY, CkvError, is_out_of_memory
from ckv_core.methods.plug_ins import watched
from ckv_core.records.events import Progress, RunEvent, RunFinished, RunResult
from ckv_core.records.records import PromptInfo
from ckv_core.records.run_request import RunRequest
from ckv_core.records.work_requests import WorkRequest, parts_of

if TYPE_CHECKING:  # `methods` must not load torch
    from ckv_core.models.loaded import LoadedModel
    from ckv_core.models.steps import Step


def load(request: WorkRequest) -> tuple["LoadedModel", float]:
    """The model of a request, and the milliseconds that loading took."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from ckv_core.models.loading import load_model

    start = time.perf_counter()
    loaded = load_model(request.model, request.device, request.dtype, report=show_step)
    return loaded, (time.perf_counter() - start) * 1000


def tokenised(request: RunRequest, loaded: "LoadedModel") -> PromptInfo:
    """The prompt of a request as the model reads it."""
    from ckv_core.engine.prompt import prompt_of

    return prompt_of(loaded.tokenizer, request)


def run(request: RunRequest, loaded: "LoadedModel", load_ms: float) -> RunResult:
    """The whole result; the load time joins its timings. Out of memory is a CkvError too."""
    from ckv_core.engine.compare import compare

    result = RunResult()
    for event in followed(compare(request, loaded), request):
        result.apply(event)
        if isinstance(event, RunFinished):
            result.timings_ms = {"load": load_ms, **event.timings_ms}
    return result


def followed(events: Iterable[RunEvent], request: WorkRequest) -> Iterator[RunEvent]:
    """The events of the engine, with their progress shown; out of memory is a CkvError too."""
    try:
        for event in watched(events, parts_of(request)):
            if isinstance(event, Progress):
                show_progress(event)
            yield event
    except (MemoryError, RuntimeError) as error:  # torch has no class of its own on the CPU
        if is_out_of_memory(error):
            raise CkvError(OUT_OF_MEMORY) from None
        raise
    clear_progress()


def show_progress(event: Progress) -> None:
    """One line that is overwritten; only on a terminal."""
    share = "" if event.fraction is None else f" {percent(event.fraction)}"
    show_line(f"{event.stage}{share} {event.detail}")


def show_step(step: "Step") -> None:
    """The same of a step of loading a model."""
    show_progress(Progress("load", step.fraction, step.sentence))


def clear_progress() -> None:
    show_line("")


def deliver(path: str | None, document: Callable[[], Any], show: Callable[[], None]) -> None:
    """Write what --json asks for, then print the tables unless the JSON went to stdout.

    The file comes first, for a closed pipe ends the printing; the tables come also where it
    could not be written.
    """
    try:
        with json_lines(path) as write:
            if path is not None:
                write(document())
    finally:
        if path != "-":
            show()


@contextmanager
def json_lines(path: str | None) -> Iterator[Callable[[Any], None]]:
    """Gives a function that writes a document on a line of its own as soon as it is there.

    Args:
        path: of a new file; `-` is stdout, None nothing.

    Raises:
        CkvError: the file cannot be made, or in the end: what was run is not lost for it.
    """
    failed: OSError | None = None

    def put(text: str, mode: str = "a") -> None:
        nonlocal failed
        try:
            with Path(str(path)).open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            failed = failed or error

    def check() -> None:
        if failed:
            reason = failed.strerror or failed
            raise CkvError(f"{path!r} cannot be written: {reason}.") from None

    def write(document: Any) -> None:
        text = json.dumps(document, allow_nan=False)
        if path == "-":
            say(text)
        elif path is not None:
            put(f"{text}\n")

    if path not in (None, "-"):
        put("", "w")
    check()
    yield write
    check()
