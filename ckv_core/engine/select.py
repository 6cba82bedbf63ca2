"""From one prefill to what each variant keeps: scores, budgets, selection, and the receipt."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ckv_core.base.memory_line import human_bytes
from ckv_core.base.percent import percent
from ckv_core.engine.candidates import (
    PageCandidates,
    PromptCandidates,
    SharedCandidates,
    order_keys,
)
from ckv_core.engine.outside import checked_budgets
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.rows import PromptRows, Rows
from ckv_core.errors import EngineError, RunCancelledError
from ckv_core.methods.parts.layout import is_shared, page_size
from ckv_core.records.records import ModelInfo, Receipt, RetainedSet, VariantMemory
from ckv_core.records.variants import VariantSpec

SLOTS_AT_ONCE = 2**18  # (layer, head, position) slots that are chosen from at a time


@dataclass(frozen=True, slots=True)
class Selection:
    """The entries that one variant keeps."""

    budget: int  # requested entries per KV head, on average
    # Per layer [kv_heads, prompt_len] bool; None where everything is kept.
    keep_masks: tuple[Tensor | None, ...]
    warnings: tuple[str, ...]  # sentences for the receipt
    # What the selector chose besides, [evictable layers, kv_heads] float32, by name.
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    elapsed_ms: float = 0.0  # what choosing took
    # Of positions that were given; else budget x KV heads x layers.
    requested_entries: int | None = None
    held: int | None = None  # entries per KV head, where a step reads only the budget of them
    at_most: bool = False  # whether it may keep fewer than requested: its rule has a threshold
    of_tokens: bool = True  # whether what its store holds of an entry is that token's
    # Of a variant that reads the prompt in blocks: what it has read, what that took, and what it
    # held on the way.
    own: Prefill | None = None
    prefill_ms: float | None = None
    memory: VariantMemory | None = None


def select(spec: VariantSpec, prefill: Prefill, budget: int) -> Selection:
    """Choose what one variant keeps in every layer; see `select_all`."""
    return select_all([spec], prefill, [budget])[0]


def select_all(
    specs: Sequence[VariantSpec],
    prefill: Prefill,
    budgets: Sequence[int],
    now: Callable[[], float] = time.perf_counter,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Selection]:
    """Choose what every variant keeps; entries are sorted once for all variants and later runs.

    `budgets`: entries per KV head, which those of the evictable layers sum to; `now`: in seconds.
    """
    selections: dict[int, Selection] = {}
    # Variants that share orders follow one another, however few orders are kept.
    for row in sorted(range(len(specs)), key=lambda row: repr(order_keys(specs[row]))):
        if should_stop():
            raise RunCancelledError
        start = now()
        chosen = _choose(specs[row], prefill, budgets[row])
        selections[row] = replace(chosen, elapsed_ms=(now() - start) * 1000)
    return [selections[row] for row in range(len(specs))]


def stage_one(spec: VariantSpec, prefill: Prefill, selection: Selection) -> list[Tensor | None]:
    """Choose by stage 1 alone, always-kept entries included: N' of the paper.

    All of a selector of one stage. [kv_heads, prompt_len] bool; None where everything is kept.
    """
    masks = list(selection.keep_masks)
    if spec.method.scorer is None or all(mask is None for mask in masks):
        return masks
    _, candidates = _candidates(spec, prefill, selection.budget)
    arrays = {name: array[:, : candidates.kv_heads] for name, array in selection.arrays.items()}
    for place, layer in enumerate(prefill.loaded.info.evictable_layers):
        if (mask := masks[layer]) is None:
            continue
        budgets = mask[: candidates.kv_heads, candidates.columns].sum(-1)
        first = candidates.stage_one(spec.selector, place, budgets, arrays)
        if first is not None:
            masks[layer] = stage = torch.ones_like(mask)
            stage[:, candidates.columns] = first.to(mask.device)
    return masks


def ranked(spec: VariantSpec, prefill: Prefill, budget: int) -> Tensor:
    """Entries that may be evicted in a variant's own order, best first; of two stages the first.

    [evictable layers, kv_heads or 1, entries]: places among the positions that are not protected.
    """
    return _candidates(spec, prefill, budget)[0].first()


def _choose(spec: VariantSpec, prefill: Prefill, budget: int) -> Selection:
    """Captured -> scores -> head budgets -> what each head keeps."""
    info, prompt_len = prefill.loaded.info, prefill.prompt_len
    masks: list[Tensor | None] = [None] * info.layers
    rule = spec.method.budget_rule
    held = spec.holds(budget, prompt_len)
    if rule is None or held >= prompt_len:
        what = f"a step reads {budget:,} entries of each KV head" if budget < held else ""
        warnings: tuple[str, ...] = (
            f"Everything is held and {what}: head L1 is not known, and bounds are of what is held."
            if what
            else f"The budget of {budget} tokens covers the whole compressed prompt of "
            f"{prompt_len} tokens: nothing was evicted.",
        )
        warnings = warnings if spec.method.evicts else ()
        return Selection(budget, tuple(masks), warnings, held=held)
    entries, candidates = _candidates(spec, prefill, held)
    head_budgets = checked_budgets(spec, rule, entries)
    kept, arrays = _keep(spec, candidates, head_budgets, prefill)
    for place, layer in enumerate(info.evictable_layers):
        masks[layer] = kept[place].to(prefill.layers[layer].keys.device)
    notes = []
    if entries.spare <= 0:
        notes.append(
            f"The budget of {budget} tokens holds only what is always kept "
            f"({spec.protected_text}): no entry was chosen, whatever the method. Raise the budget, "
            "or lower what is always kept."
        )
    notes += rule.notes(entries, spec.params)
    if spec.policy is not None and spec.policy.moves(spec.params):
        notes.append(
            "Keys move to positions inside the cache while it generates. Head L1 and bounds are "
            "those of the kept set at its positions in the text."
        )
    if not spec.store.of_tokens:
        notes.append(
            "Its entries are no tokens: the map shows whose keys they have, and values and a bias "
            "are fitted. Head L1 is not known, and bounds are of the keys' own tokens."
        )
    if size := page_size(spec.params):  # then all heads keep the same
        padded = torch.nn.functional.pad(kept[:, 0], (0, -prompt_len % size))
        pages = int(padded.view(len(kept), -1, size).any(-1).sum())
        full = percent(int(kept[:, 0].sum()) / max(1, pages * size))
        notes.append(
            f"In pages of {size} positions: {pages / len(kept):.1f} pages per layer on average, "
            f"{full} of their room filled; a server holds them whole."
        )
    return Selection(
        budget,
        tuple(masks),
        tuple(notes),
        arrays,
        held=held,
        at_most=rule.at_most,
        of_tokens=spec.store.of_tokens,
    )


def _candidates(
    spec: VariantSpec, prefill: Prefill, budget: int
) -> tuple[PromptCandidates, PromptCandidates]:
    """The entries that a variant may evict, for its budget rule, and what its selector ranks."""
    kind = SharedCandidates if is_shared(spec.params) else PromptCandidates
    entries = kind(spec, prefill, budget)
    return entries, PageCandidates(spec, prefill, budget) if page_size(spec.params) else entries


def _keep(
    spec: VariantSpec, candidates: PromptCandidates, head_budgets: Tensor, prefill: Prefill
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the kept sets [evictable layers, kv_heads, prompt_len] bool, and the arrays."""
    layers, heads = candidates.layers, prefill.loaded.info.kv_heads
    prompt_len = prefill.prompt_len
    kept = torch.ones((layers, heads, prompt_len), dtype=torch.bool, device=prefill.device)
    at_once = max(1, SLOTS_AT_ONCE // (heads * prompt_len))
    at_once = 1 if spec.selector.one_layer else at_once
    arrays: dict[str, list[Tensor]] = {}
    for start in range(0, layers, at_once):
        part = slice(start, min(start + at_once, layers))
        chosen = candidates.keep(part, head_budgets[part])
        kept[part, :, candidates.columns] = chosen.mask.to(kept.device)
        for name, array in chosen.arrays.items():
            arrays.setdefault(name, []).append(array.to(kept.device).expand(-1, heads))
    return kept, {name: torch.cat(parts) for name, parts in arrays.items()}


def receipt(selection: Selection, model: ModelInfo, rows: PromptRows, row: int) -> Receipt:
    """Entries and bytes of the variant in a row; EngineError where it keeps another number."""
    evictable = [rows.slots(layer, row) for layer in model.evictable_layers]
    prompt_len = rows.prompt_len
    masks = [selection.keep_masks[layer] for layer in model.evictable_layers]
    device = evictable[0].like[0].device  # a layer may lie on another one
    evicting = [mask.to(device) for mask in masks if mask is not None]
    whole = (len(masks) - len(evicting)) * model.kv_heads * prompt_len
    retained = whole + (int(torch.stack(evicting).sum()) if evicting else 0)
    warnings = list(selection.warnings)
    if len(evictable) < model.layers:
        warnings.append(
            f"{model.layers - len(evictable)} of {model.layers} layers use a sliding window; they "
            "are not evicted and are not counted here."
            if not rows.state_bytes
            else f"{model.layers - len(evictable)} of {model.layers} layers have linear attention; "
            f"their states ({human_bytes(rows.state_bytes)}) are not evicted and are not counted "
            "here."
        )
    requested = selection.requested_entries
    if requested is None:
        requested = len(evictable) * model.kv_heads * min(selection.budget, prompt_len)
    wanted = requested
    if selection.held is not None:
        wanted = len(evictable) * model.kv_heads * min(selection.held, prompt_len)
    if retained > wanted or (retained < wanted and not selection.at_most):
        raise EngineError(
            f"A method kept {retained:,} entries where {wanted:,} were requested. This is a "
            "fault of the app: please report it with the run's settings."
        )
    return Receipt(
        budget_tokens=selection.budget,
        requested_entries=requested,
        retained_entries=retained,
        cache_bytes=sum(rows.row_bytes(layer, row) for layer in model.evictable_layers),
        read_bytes=sum(rows.row_bytes(layer, row, read=True) for layer in model.evictable_layers),
        full_cache_bytes=sum(layer.bytes_of(prompt_len) for layer in evictable),
        warnings=tuple(warnings),
    )


def retained_set(selection: Selection, model: ModelInfo, prompt_len: int) -> RetainedSet:
    """The kept positions of every layer, packed; layers not evicted are all ones."""
    everything = torch.ones(model.kv_heads, prompt_len, dtype=torch.bool)
    masks = [everything if mask is None else mask.cpu() for mask in selection.keep_masks]
    return RetainedSet.from_mask(torch.stack(masks).numpy())


def held_bytes(
    prefilled: Prefill, rows: PromptRows, parts: Sequence[Rows], selections: Sequence[Selection]
) -> int:
    """Bytes of the tensors that a run holds when decoding begins; a kept set counts once."""
    masks = {id(mask): mask for each in selections for mask in each.keep_masks if mask is not None}
    kept_sets = sum(mask.nbytes for mask in masks.values())
    grown = sum(part.grown_bytes for part in parts)
    return prefilled.nbytes + rows.own_bytes + grown + kept_sets
