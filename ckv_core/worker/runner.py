"""The real engine behind the worker loop: keeps models and their prefills. Imports torch."""

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ckv_core.base.device_memory import available_bytes, keep_for_good
from ckv_core.base.devices import is_cuda_like
from ckv_core.engine.compare import compare
from ckv_core.engine.kept import ask, keep
from ckv_core.engine.prefill_cache import KEPT_PREFILL_BYTES, PrefillCache
from ckv_core.engine.preview import preview
from ckv_core.engine.why import why
from ckv_core.errors import ModelTooLargeError
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.loading import load_model
from ckv_core.models.steps import Report
from ckv_core.records.events import RunEvent
from ckv_core.records.work_requests import (
    AskRequest,
    KeepRequest,
    PreviewRequest,
    WhyRequest,
    WorkRequest,
)

KEPT_MODELS = 2
KEPT_BYTES = 2 * 2**30  # a second model is kept only while both together stay below this
PROMPT_S = 120.0  # of template and tokenizer
KEPT_CUDA_SHARE = 4  # on CUDA up to this part of what the loaded model leaves free, if that is more

ModelKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Served:
    """A model in memory and its recent prefills, which go when it goes."""

    loaded: LoadedModel
    prefills: PrefillCache


class EngineRunner:
    """Runs comparisons on the models it keeps in memory; see `serve.Runner`."""

    act = "The run"

    def __init__(self) -> None:
        self._models: OrderedDict[ModelKey, _Served] = OrderedDict()
        keep_for_good()

    def load(self, model: str, device: str, dtype: str, report: Report) -> str:
        """Have this model in memory, dropping others where they would take too much of it.

        The prefills of the others go in any case: a run sees only its own model's as room that it
        could have, and would be refused for the others'.
        """
        key = self._key(model, device, dtype)
        self._drop_prefills(but=key)
        if key not in self._models:
            if self._bytes() > KEPT_BYTES:
                self.release()
            try:
                loaded = load_model(model, device, dtype, report)
            except ModelTooLargeError:
                if not self._models:
                    raise
                self.release()  # beside a smaller one there was no room
                loaded = load_model(model, device, dtype, report)
            kept = KEPT_PREFILL_BYTES
            if is_cuda_like(loaded.device):  # prefills of a large model are large too
                kept = max(kept, available_bytes(loaded.device) // KEPT_CUDA_SHARE)
            self._models[key] = _Served(loaded, PrefillCache(kept))
        self._models.move_to_end(key)
        while len(self._models) > KEPT_MODELS or (
            len(self._models) > 1 and self._bytes() > KEPT_BYTES
        ):
            self._models.popitem(last=False)
            _free_memory()
        info = self._models[key].loaded.info
        return f"on {info.device} in {info.dtype}"

    def prompt_limit_s(self, _: WorkRequest) -> float:
        """Enough for any: 4 million characters take about 15 s."""
        return PROMPT_S

    def run(self, request: WorkRequest, should_stop: Callable[[], bool]) -> Iterator[RunEvent]:
        """Compare, preview, keep or ask a cache, on the model that `load` has in memory."""
        served = self._models[self._key(request.model, request.device, request.dtype)]
        if isinstance(request, AskRequest):
            return ask(request, served.loaded, should_stop)
        if isinstance(request, KeepRequest):
            return keep(request, served.loaded, should_stop, served.prefills)
        if isinstance(request, PreviewRequest):
            return preview(request, served.loaded, should_stop, served.prefills)
        if isinstance(request, WhyRequest):
            return why(request, served.loaded, should_stop, served.prefills)
        return compare(request, served.loaded, should_stop, served.prefills)

    def release(self) -> None:
        self._models.clear()
        _free_memory()

    def _key(self, model: str, device: str, dtype: str) -> ModelKey:
        """Of the model in memory that serves this; a kept cache names the type that `auto` gave."""
        for key, served in self._models.items():
            if key[:2] == (model, device) and dtype in (key[2], served.loaded.info.dtype):
                return key
        return (model, device, dtype)

    def _drop_prefills(self, but: ModelKey) -> None:
        held = [each.prefills for key, each in self._models.items() if key != but]
        if any(prefills.nbytes for prefills in held):
            for prefills in held:
                prefills.clear()
            _free_memory()

    def _bytes(self) -> int:
        return sum(
            parameter.nbytes
            for served in self._models.values()
            for parameter in served.loaded.model.parameters()
        )


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
