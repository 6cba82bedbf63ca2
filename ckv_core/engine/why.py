"""Why an answer was lost: evicted entries are put back, and the model answers again.

Each row is what a variant kept with some evicted entries in the place of its lowest ranked ones, so
that every KV head holds as many as before. All rows decode in one batch from one prefill.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from ckv_core.engine.candidates import protected_mask
from ckv_core.engine.choose import choose
from ckv_core.engine.compare import decoded_together, prepare, prepared, read_prompt
from ckv_core.engine.external_selection import KeepMask, mean_kept
from ckv_core.engine.memory import check_memory
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.run import Run
from ckv_core.engine.select import ranked, retained_set
from ckv_core.errors import ConfigError, PromptError
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.events import RunEvent, RunFinished
from ckv_core.records.external_selection import ExternalSelection
from ckv_core.records.passages import evidence_spans
from ckv_core.records.work_requests import (
    ALL_HEADS,
    CONTROL,
    CONTROLS,
    KV_HEAD,
    LAYER,
    LAYERS,
    NEIGHBOURS,
    WhyRequest,
)

BANDS = 6
MOST_LAYERS = 48  # that have a row each
REACH = 3  # positions to each side, as of max-pooling with kernel 7
Ranks = NDArray[np.int64]  # [layers, kv_heads, positions], 0 the best; -1 what is never evicted


@torch.inference_mode()
def why(
    request: WhyRequest,
    loaded: LoadedModel,
    should_stop: Callable[[], bool] = lambda: False,
    prefills: PrefillCache | None = None,
) -> Iterator[RunEvent]:
    """The events of a comparison: the full cache, the variant, then a row for each attempt.

    Raises:
        CkvError: the request, the prompt or the model cannot be used so.
        RunCancelledError: should_stop returned true.
    """
    run, prefills = prepare(request.comparison(), loaded, should_stop), prefills or PrefillCache(0)
    spec = run.specs[1]
    if not spec.store.of_tokens:
        raise ConfigError(
            f"The entries of {spec.label} are fitted to one another, so none can be put back; "
            "choose another variant."
        )
    if run.reading_in_blocks:
        raise ConfigError(f"{spec.label} reads the prompt in blocks, so nothing can be put back.")
    spans = evidence_spans(run.prompt, request.evidence, run.request.answer)
    if not spans:
        raise PromptError(
            "Neither the evidence nor the expected answer occurs in the compressed prompt. Name "
            "the words of the context that hold the answer."
        )
    check_memory(run, prefills)
    prefilled = yield from read_prompt(run, prefills)
    skipped = frozenset({spec.base().settings()} if spec.critical else ())
    (_, selection), _ = yield from choose(run, prefilled, skipped)
    kept = retained_set(selection, loaded.info, prefilled.prompt_len).mask()
    if kept.all():
        raise ConfigError(f"{spec.label} keeps the whole prompt, so nothing was lost.")
    evidence = np.zeros(prefilled.prompt_len, np.bool_)
    for first, end in spans:
        evidence[first:end] = True
    masks = attempts(kept, _ranks(run, prefilled), evidence, loaded.info.evictable_layers)
    rows = [ExternalSelection(label=label, rows=()).spec() for label in masks]
    run = replace(
        run,
        specs=[*run.specs, *rows],
        own_masks=[*masks.values()],
        budgets=[*run.budgets, *(int(mean_kept(mask, loaded.info)) for mask in masks.values())],
        select_ms=[],
        measures_floor=False,
    )
    yield prepared(run, check_memory(run, prefills))
    try:
        yield from decoded_together(run, prefilled, skipped)
    finally:
        prefills.trim()
    yield RunFinished(dict(run.stopwatch.timings_ms))


def attempts(
    kept: KeepMask, ranks: Ranks, evidence: NDArray[np.bool_], layers: tuple[int, ...]
) -> dict[str, KeepMask]:
    """The kept set of each row, by its label; rows that would put nothing back are left out.

    Args:
        kept: [layers, kv_heads, positions] of the variant.
        ranks: of its own order.
        evidence: [positions].
        layers: those that may lose entries.
    """
    missing = ~kept & evidence
    whole = np.zeros(kept.shape[:2], np.bool_)  # [layers, kv_heads] of a row
    whole[list(layers)] = True
    places = {ALL_HEADS: whole}
    for band in np.array_split(np.array(layers), min(BANDS, len(layers))):
        places[LAYERS.format(band[0], band[-1])] = _at(whole, list(band), slice(None))
    for layer in layers if len(layers) <= MOST_LAYERS else ():
        places[LAYER.format(layer)] = _at(whole, layer, slice(None))
    for head in range(kept.shape[1]):
        places[KV_HEAD.format(head)] = _at(whole, slice(None), head)
    wanted = {label: missing & place[..., None] for label, place in places.items()}
    wanted[NEIGHBOURS] = ~kept & _near(kept & evidence)
    found = {
        label: put_back(kept, ranks, each, evidence) for label, each in wanted.items() if each.any()
    }
    for number in range(CONTROLS if ALL_HEADS in found else 0):
        counts = (found[ALL_HEADS] & ~kept).sum(-1)
        others = _drawn(~kept & ~evidence, counts, np.random.default_rng(number))
        found[CONTROL.format(number + 1)] = put_back(kept, ranks, others, evidence)
    return found


def put_back(
    kept: KeepMask, ranks: Ranks, wanted: KeepMask, evidence: NDArray[np.bool_]
) -> KeepMask:
    """Keep what is wanted in the place of the lowest ranked, head by head.

    Neither evidence nor what is never evicted leaves; where too little else can, only as much comes
    back, the best ranked first.
    """
    changed = kept.copy()
    for layer, head in np.argwhere((wanted & ~kept).any(-1)):
        rank, own = ranks[layer, head], kept[layer, head]
        coming = np.flatnonzero(wanted[layer, head] & ~own)
        leaving = np.flatnonzero(own & ~evidence & (rank >= 0))
        count = min(len(coming), len(leaving))
        changed[layer, head, coming[rank[coming].argsort(kind="stable")[:count]]] = True
        changed[layer, head, leaving[rank[leaving].argsort(kind="stable")[::-1][:count]]] = False
    return changed


def _at(whole: NDArray[np.bool_], layers: int | slice | list[int], heads: int | slice) -> KeepMask:
    part = np.zeros_like(whole)
    part[layers, heads] = whole[layers, heads]
    return part


def _near(marked: KeepMask) -> KeepMask:
    """Positions that lie at most REACH from a marked one of the same head."""
    padded = np.pad(marked, ((0, 0), (0, 0), (REACH, REACH)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * REACH + 1, axis=-1)
    return np.asarray(windows.any(-1))


def _drawn(free: KeepMask, counts: NDArray[np.int64], rng: np.random.Generator) -> KeepMask:
    """As many of the free entries of each head, by chance."""
    drawn = np.zeros_like(free)
    for layer, head in np.argwhere(counts > 0):
        places = np.flatnonzero(free[layer, head])
        count = min(len(places), int(counts[layer, head]))
        drawn[layer, head, rng.choice(places, count, replace=False)] = True
    return drawn


def _ranks(run: Run, prefilled: Prefill) -> Ranks:
    """The variant's own order of all entries; of two stages the first."""
    spec, info = run.specs[1], run.loaded.info
    ranks = np.full((info.layers, info.kv_heads, prefilled.prompt_len), -1, np.int64)
    free = np.flatnonzero(~protected_mask(spec, prefilled.prompt_len).numpy())
    places = ranked(spec, prefilled, run.budgets[1]).cpu().numpy().argsort(-1)
    for layer, place in zip(info.evictable_layers, places, strict=True):
        ranks[layer][:, free] = place
    return ranks
