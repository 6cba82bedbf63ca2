"""What a variant asked of the cache and what it got, counted from what is really held."""

from collections.abc import Sequence

import torch

from ckv_core.cache.ragged import RaggedLayer, retained_bytes
from ckv_core.engine.select import Selection
from ckv_core.records import ModelInfo, Receipt, RetainedSet


def receipt(
    selection: Selection, model: ModelInfo, evictable: Sequence[RaggedLayer], row: int
) -> Receipt:
    """Entries and bytes of one variant.

    Args:
        selection: what it keeps.
        model: whose layers these are.
        evictable: the caches of the evictable layers.
        row: the variant's row in them.
    """
    prompt_len = evictable[0].keys.shape[1]
    masks = [selection.keep_masks[layer] for layer in model.evictable_layers]
    device = evictable[0].keys.device  # a layer may lie on another one
    evicting = [mask.to(device) for mask in masks if mask is not None]
    whole = (len(masks) - len(evicting)) * model.kv_heads * prompt_len
    retained = whole + (int(torch.stack(evicting).sum()) if evicting else 0)
    warnings = list(selection.warnings)
    if len(evictable) < model.layers:
        warnings.append(
            f"{model.layers - len(evictable)} of {model.layers} layers use a sliding window; they "
            "are left whole and are not counted here."
        )
    requested = selection.requested_entries
    if requested is None:
        requested = len(evictable) * model.kv_heads * min(selection.budget, prompt_len)
    return Receipt(
        budget_tokens=selection.budget,
        requested_entries=requested,
        retained_entries=retained,
        cache_bytes=retained_bytes(evictable, row),
        full_cache_bytes=sum(layer.keys.nbytes + layer.values.nbytes for layer in evictable),
        warnings=tuple(warnings),
    )


def retained_set(selection: Selection, model: ModelInfo, prompt_len: int) -> RetainedSet:
    """The kept positions of every layer, packed; layers left whole are all ones."""
    everything = torch.ones(model.kv_heads, prompt_len, dtype=torch.bool)
    masks = [everything if mask is None else mask.cpu() for mask in selection.keep_masks]
    return RetainedSet.from_mask(torch.stack(masks).numpy())
