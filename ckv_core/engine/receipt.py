"""What a variant asked of the cache and what it got, counted from what is really held."""

from collections.abc import Sequence

import torch

from ckv_core.engine.decode import Part
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.rows import PromptRows
from ckv_core.engine.select import Selection
from ckv_core.errors import EngineError
from ckv_core.results.records import ModelInfo, Receipt, RetainedSet


def receipt(selection: Selection, model: ModelInfo, rows: PromptRows, row: int) -> Receipt:
    """Entries and bytes of the variant in a row; EngineError where it keeps another number."""
    evictable = [rows.layers[layer] for layer in model.evictable_layers]
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
        )
    requested = selection.requested_entries
    if requested is None:
        requested = len(evictable) * model.kv_heads * min(selection.budget, prompt_len)
    if retained != requested:
        raise EngineError(
            f"A method kept {retained:,} entries where {requested:,} were asked for. This is a "
            "fault of the app: please report it with the run's settings."
        )
    return Receipt(
        budget_tokens=selection.budget,
        requested_entries=requested,
        retained_entries=retained,
        cache_bytes=sum(rows.row_bytes(layer, row) for layer in model.evictable_layers),
        full_cache_bytes=sum(layer.whole_bytes for layer in evictable),
        warnings=tuple(warnings),
    )


def retained_set(selection: Selection, model: ModelInfo, prompt_len: int) -> RetainedSet:
    """The kept positions of every layer, packed; layers not evicted are all ones."""
    everything = torch.ones(model.kv_heads, prompt_len, dtype=torch.bool)
    masks = [everything if mask is None else mask.cpu() for mask in selection.keep_masks]
    return RetainedSet.from_mask(torch.stack(masks).numpy())


def held_bytes(
    prefilled: Prefill, rows: PromptRows, parts: Sequence[Part], selections: Sequence[Selection]
) -> int:
    """Bytes of the tensors that a run holds when decoding begins; a kept set counts once."""
    masks = {id(mask): mask for each in selections for mask in each.keep_masks if mask is not None}
    kept_sets = sum(mask.nbytes for mask in masks.values())
    grown = sum(part.grown_bytes for part in parts)
    return prefilled.nbytes + rows.own_bytes + grown + kept_sets
