"""Variants whose kept positions were given: checked against prompt and model, made selections."""

import numpy as np
import torch
from numpy.typing import NDArray

from ckv_core.engine.prefill import Prefill
from ckv_core.engine.run import Run
from ckv_core.engine.select import Selection
from ckv_core.errors import ConfigError
from ckv_core.methods.parameters import DEFAULT_BUDGET, Budget
from ckv_core.records.external_selection import ExternalSelection, unpack
from ckv_core.records.records import ModelInfo, PromptInfo

KeepMask = NDArray[np.bool_]


def own_mask(own: ExternalSelection, model: ModelInfo, prompt: PromptInfo) -> KeepMask:
    """Returns one such variant's entries, [layers, kv_heads, compressed_tokens]; else all true.

    ConfigError where the positions are of another model or prompt, or do not fit these.
    """
    _check_model(own, model)
    _check_prompt(own, prompt)
    mask = np.ones((model.layers, model.kv_heads, prompt.compressed_tokens), np.bool_)
    for layer in range(model.layers):
        rows = own.rows[0 if own.same_layers else layer]
        if layer not in model.evictable_layers:
            if rows is not None and not own.same_layers:
                raise ConfigError(
                    f"{own.label!r}: layer {layer} has a sliding window and is not evicted; write "
                    "null in its place."
                )
        elif rows is not None:
            for head in range(model.kv_heads):
                kept = unpack(rows[0 if own.same_heads else head])
                tokens = prompt.compressed_tokens
                if kept.size and kept[-1] >= tokens:
                    raise ConfigError(
                        f"{own.label!r} keeps position {kept[-1]:,} in layer {layer}, KV head "
                        f"{head}; the compressed prompt has {tokens:,} tokens, so 0 to "
                        f"{tokens - 1:,} can be kept."
                    )
                mask[layer, head] = False
                mask[layer, head, kept] = True
    return mask


def mean_kept(mask: KeepMask, model: ModelInfo) -> float:
    """Entries per KV head of the evictable layers."""
    return float(mask[list(model.evictable_layers)].sum(-1).mean())


def own_selection(run: Run, prefilled: Prefill, mask: KeepMask) -> Selection:
    """The selection of one such variant: it asks for what it keeps."""
    start = run.stopwatch.now()
    info, prompt_len = run.loaded.info, prefilled.prompt_len
    kept = mask[list(info.evictable_layers)]
    keep_masks = tuple(
        None if whole.all() else torch.from_numpy(whole).to(states.keys.device)
        for whole, states in zip(mask, prefilled.layers, strict=True)
    )
    return Selection(
        budget=int(mean_kept(mask, info)),
        keep_masks=keep_masks,
        warnings=_warnings(run, kept, prompt_len),
        requested_entries=int(kept.sum()),
        elapsed_ms=(run.stopwatch.now() - start) * 1000,
    )


def _warnings(run: Run, kept: KeepMask, prompt_len: int) -> tuple[str, ...]:
    if kept.all():
        return (
            f"All {prompt_len} positions of the compressed prompt are kept: nothing was evicted.",
        )
    info, itemsize = run.loaded.info, run.loaded.model.dtype.itemsize
    text = next(iter(run.request.budgets), DEFAULT_BUDGET)
    layers, kv_heads, _ = kept.shape
    budget = Budget.parse(text).resolve(
        prompt_len, 2 * info.head_dim * itemsize * layers * kv_heads
    )
    if int(kept.sum()) == min(budget, prompt_len) * layers * kv_heads:
        return ()
    return (
        f"Keeps {kept.sum(-1).mean():.1f} entries per KV head on average. The run's budget is "
        f"{budget}, so variants of that budget are not compared like for like with it.",
    )


def _check_model(own: ExternalSelection, model: ModelInfo) -> None:
    shape = (own.layers or model.layers, own.kv_heads or model.kv_heads)
    if shape != (model.layers, model.kv_heads):
        raise ConfigError(
            f"{own.label!r} has positions for {shape[0]} layers and {shape[1]} KV heads; "
            f"{model.name} has {model.layers} and {model.kv_heads}. Choose its own model."
        )
    if own.sha256 and own.sha256 != model.sha256:
        raise ConfigError(
            f"{own.label!r} was chosen on other weights (sha256 {own.sha256[:12]}) than those of "
            f"{model.name} ({model.sha256[:12]}); choose its own model."
        )


def _check_prompt(own: ExternalSelection, prompt: PromptInfo) -> None:
    tokens = prompt.compressed_tokens
    advice = "give the same context, question, scenario and tokenizer"
    if own.token_ids is not None:
        theirs = unpack(own.token_ids)[:tokens]
        ours = np.array(prompt.token_ids[: len(theirs)])
        differing, other = np.flatnonzero(theirs != ours), ""
        if differing.size:
            at = int(differing[0])
            other = f"the token at position {at} is {theirs[at]} there and {ours[at]} here"
        elif len(theirs) < tokens:
            other = f"{len(theirs):,} tokens, where this one compresses {tokens:,}"
        if other:
            raise ConfigError(f"{own.label!r} was chosen on another prompt: {other}; {advice}.")
    if own.compressed_tokens not in (None, tokens):
        raise ConfigError(
            f"{own.label!r} was chosen on {own.compressed_tokens:,} compressed tokens; this "
            f"prompt has {tokens:,}; {advice}."
        )
