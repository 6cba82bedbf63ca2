"""An engine without a model: the question of a request is the script that it plays."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ckv_core.errors import ConfigError, ModelError, PromptError, RunCancelledError
from ckv_core.models.steps import Report, Step
from ckv_core.records.events import (
    Generated,
    Progress,
    RunEvent,
    RunFinished,
    RunPrepared,
    TokensCounted,
)
from ckv_core.records.records import ModelInfo, PromptInfo
from ckv_core.records.run_request import RunRequest
from ckv_core.records.work_requests import AskRequest, KeepRequest, PreviewRequest, WorkRequest
from tests.factories.kept import kept_bytes, kept_record
from tests.factories.runs import bare, model_info, prompt_info

STEP_S = 0.02
PROMPT_S = 120.0
LONG = 100
QUESTIONS = ("What", "When?")


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


class AcceleratorError(RuntimeError):
    """Named like torch's."""


class ScriptedRunner:
    """Scripts: `steps N`, `long N`, `deaf N`, `hang [FILE]`, `spin`, `kill`, `exit N`, `refuse`,
    `bug`, `oom`. `hang` makes the file once it hangs. To
    `What` and `When?`, as samples of studies ask, every variant says `nine`.

    Tokens of `long` have 100 characters each; `deaf` never asks whether to stop; `quote` fails
    with an error that holds the context. Models: `missing`, `slow` or `slow N` (of so many parts),
    `stuck` and others that begin so (after a step of 0.3 s); others are there at once.
    """

    act = "The run"

    def __init__(self) -> None:
        self.info: ModelInfo | None = None

    def load(self, model: str, device: str, dtype: str, report: Report) -> str:
        report(Step(f"Reading {model}."))
        if model == "missing":
            raise ModelError("No model 'missing' was found; check the name.")
        word, _, parts = model.partition(" ")
        if word == "slow":
            count = int(parts or 100)
            for step in range(count):
                time.sleep(STEP_S)
                report(Step(f"Part {step} of {count}.", step / count))
        if model.startswith("stuck"):
            report(Step("Reading the config of stuck.", limit_s=0.3))
            time.sleep(3600)
        self.info = _model_info(model)
        return "on cpu in float32"

    def prompt_limit_s(self, _: WorkRequest) -> float:
        return PROMPT_S

    def run(self, request: WorkRequest, should_stop: Callable[[], bool]) -> Iterator[RunEvent]:
        if isinstance(request, PreviewRequest):
            request = request.run
        if isinstance(request, RunRequest):
            return self._compare(request, should_stop)
        return self._of_cache(request, should_stop)

    def _compare(self, request: RunRequest, should_stop: Callable[[], bool]) -> Iterator[RunEvent]:
        assert self.info is not None
        word, _, number = request.question.partition(" ")
        specs = [each.spec for each in request.specs] if word in QUESTIONS else ["full"]
        variants = tuple(bare(spec) for spec in specs)
        yield RunPrepared(self.info, _prompt_info(request), variants, {})
        yield Progress("prefill", 1.0, "layer 2 of 2")
        if word in QUESTIONS:
            time.sleep(STEP_S)
            yield _nine(len(variants))
            yield RunFinished({})
            return
        if word == "quote":
            raise ValueError(request.context)
        steps = int(number) if number.isdigit() else 3
        if word == "hang":
            _hang(number)
        _interrupt(word, steps)
        for step in range(1, steps + 1):
            if word != "deaf" and should_stop():
                raise RunCancelledError("Cancelled.")
            time.sleep(STEP_S)
            yield Progress("decode", step / steps, f"token {step} of {steps}")
            yield _generated(step, LONG if word == "long" else 0, last=step == steps)
        yield RunFinished({"prefill": 1.0, "decode": 2.0})

    def _of_cache(
        self, request: KeepRequest | AskRequest, should_stop: Callable[[], bool]
    ) -> Iterator[RunEvent]:
        """A question is a script too; what is kept has a head and nothing else."""
        question = request.question if isinstance(request, AskRequest) else request.run.question
        asked = RunRequest(context="kept", question=question)
        for event in self._compare(asked, should_stop):
            if not isinstance(event, RunPrepared):
                yield event
        if isinstance(request, KeepRequest):
            Path(request.path).write_bytes(kept_bytes(kept_record(spec=request.run.variants[0])))

    def release(self) -> None:
        self.info = None


class ScriptedCounter(ScriptedRunner):
    """Words of the context; the script `hang` has no end."""

    act = "Counting tokens"

    def run(self, request: WorkRequest, _: Callable[[], bool]) -> Iterator[TokensCounted]:
        if request.question.startswith("hang"):
            _hang(request.question.partition(" ")[2])
        if not request.context.strip():
            raise PromptError("The text is empty; paste one or open a file.")
        count = len(request.context.split())
        yield TokensCounted(count, count, _model_info(request.model).context_limit)


FAILURES = {
    "refuse": ConfigError("Budget 3 is below the protected tokens."),
    "bug": ValueError("first line\nsecond line"),
    "oom": OutOfMemoryError("CUDA out of memory"),
    "oom-allocator": RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    "oom-onednn": RuntimeError("could not create a memory object"),
    "oom-cublas": RuntimeError(
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    ),
    "oom-below": RuntimeError("CUDA driver error: out of memory"),
    "oom-driver": AcceleratorError("CUDA error: out of memory"),
    "device-lost": AcceleratorError("CUDA error: an illegal memory access was encountered"),
}


def _hang(file: str) -> None:
    if file:
        Path(file).touch()
    time.sleep(3600)


def _interrupt(word: str, number: int) -> None:
    match word:
        case "spin":
            while True:
                pass
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(number)
        case _ if word in FAILURES:
            raise FAILURES[word]


def _model_info(name: str) -> ModelInfo:
    return model_info(name=name, sha256="0" * 64, head_dim=8, context_limit=8_192)


def _prompt_info(request: RunRequest) -> PromptInfo:
    words = [f"{word} " for word in request.context.split()]
    return prompt_info(words, scenario=request.scenario)


def _nine(count: int) -> Generated:
    return Generated(("nine",) * count, ((1,),) * count, (("nine",),) * count, ("eos",) * count)


def _generated(step: int, width: int, *, last: bool) -> Generated:
    texts = tuple(f"w{i} ".ljust(width) for i in range(step))
    return Generated(
        ("".join(texts),), (tuple(range(step)),), (texts,), ("length" if last else None,)
    )


class BrokenRunner:
    """Cannot even start."""

    def __init__(self) -> None:
        raise ImportError("no torch here")
