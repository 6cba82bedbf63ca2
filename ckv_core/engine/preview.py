"""A run that is shown but not stored, for a slider: its kept sets come first, then its texts."""

from collections.abc import Callable, Iterator

import torch

from ckv_core.engine.choose import VariantKey, choose, compact_rows
from ckv_core.engine.compare import prepare, prepared, read_prompt
from ckv_core.engine.generate import generate
from ckv_core.engine.memory import check_memory
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.select import retained_set
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.events import Generated, RunEvent, VariantsChose
from ckv_core.records.work_requests import PreviewRequest


@torch.inference_mode()
def preview(
    request: PreviewRequest,
    loaded: LoadedModel,
    should_stop: Callable[[], bool],
    prefills: PrefillCache,
) -> Iterator[RunEvent]:
    """The events of a comparison, and `VariantsChose` before any cache is made.

    It ends where the request says, without RunFinished: it measures no memory. Raises as `compare`.
    """
    run = prepare(request.run, loaded, should_stop)
    yield prepared(run, check_memory(run, prefills))
    try:
        prefilled = yield from read_prompt(run, prefills)
        skipped: frozenset[VariantKey] = frozenset()
        if request.until == "kept":  # bases serve the figures of the first step alone
            skipped = frozenset(spec.base().settings() for spec in run.specs if spec.critical)
        selections, bases = yield from choose(run, prefilled, skipped)
        info, tokens = loaded.info, prefilled.prompt_len
        yield VariantsChose(
            tuple(
                retained_set(selection, info, tokens) if spec.method.name != "full" else None
                for spec, selection in zip(run.specs, selections, strict=True)
            )
        )
        if request.until == "kept":
            return
        rows = yield from compact_rows(run, prefilled, selections)
        for event in generate(run, prefilled, rows, selections, bases):
            if request.until == "step" and isinstance(event, Generated):
                return
            yield event
    finally:
        prefills.trim()
