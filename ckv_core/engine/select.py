"""From one prefill to what each variant keeps: scores, budgets, selection."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ckv_core.budgets.adaptive import adaptive_budgets
from ckv_core.budgets.pyramid import pyramid_budgets
from ckv_core.budgets.uniform import uniform_budgets
from ckv_core.engine.prefill import Prefill
from ckv_core.records import ModelInfo
from ckv_core.scoring.layer_scores import LayerScores, window_scores
from ckv_core.scoring.position import recency
from ckv_core.selection.critical import critical
from ckv_core.selection.top_k import top_k
from ckv_core.variants import VariantSpec


@dataclass(frozen=True, slots=True)
class Selection:
    """What one variant keeps.

    Attributes:
        budget: entries per KV head asked for, on average.
        keep_masks: per layer [kv_heads, prompt_len] bool; None where everything is kept.
        warnings: sentences for the receipt.
    """

    budget: int
    keep_masks: tuple[Tensor | None, ...]
    warnings: tuple[str, ...]


def resolve_budget(spec: VariantSpec, model: ModelInfo, prompt_len: int, entry_bytes: int) -> int:
    """Budget in tokens, checked against what the variant always keeps.

    Args:
        spec: the variant.
        model: for the number of evictable layers and KV heads.
        prompt_len: compressed tokens.
        entry_bytes: bytes of one key and value.

    Raises:
        ConfigError: the budget is below the protected tokens.
    """
    if spec.method.budget_rule == "all":
        return prompt_len
    bytes_per_token = entry_bytes * len(model.evictable_layers) * model.kv_heads
    budget = spec.budget.resolve(prompt_len, bytes_per_token)
    spec.check_budget(budget)
    return budget


def select(spec: VariantSpec, prefill: Prefill, budget: int) -> Selection:
    """Choose what one variant keeps in every layer.

    The kept entries of the evictable layers sum to layers x kv_heads x min(budget, prompt_len).
    """
    prompt_len = prefill.prompt_len
    info = prefill.loaded.info
    if budget >= prompt_len:
        warning = f"The budget of {budget} tokens covers the whole compressed prompt of "
        warning += f"{prompt_len} tokens: nothing was evicted."
        warnings = () if spec.method.budget_rule == "all" else (warning,)
        return Selection(budget, (None,) * info.layers, warnings)
    sinks, window = spec.protected["sinks"], spec.protected["window"]
    scores = [_layer_scores(spec, prefill, layer) for layer in info.evictable_layers]
    head_budgets = _head_budgets(spec, scores, budget - sinks - window)
    masks: list[Tensor | None] = [None] * info.layers
    for layer, layer_scores, budgets in zip(
        info.evictable_layers, scores, head_budgets, strict=True
    ):
        device = layer_scores.attention_score.device
        mask = torch.ones(info.kv_heads, prompt_len, dtype=torch.bool, device=device)
        mask[:, sinks : prompt_len - window] = _keep(spec, layer_scores, budgets.to(device))
        masks[layer] = mask
    return Selection(budget, tuple(masks), ())


def _layer_scores(spec: VariantSpec, prefill: Prefill, layer: int) -> LayerScores:
    kv_heads = prefill.loaded.info.kv_heads
    if spec.method.scorer == "position":
        evictable = prefill.prompt_len - spec.protected["sinks"]
        device = prefill.layers[layer].keys.device
        return LayerScores(recency(kv_heads, evictable, device), None)
    attention = prefill.window_attention(layer, int(spec.params["window"]))
    norms = prefill.value_norms(layer) if spec.critical else None
    return window_scores(attention, norms, kv_heads, spec.params)


def _head_budgets(spec: VariantSpec, scores: list[LayerScores], spare: int) -> Tensor:
    """Entries per head beyond the protected ones, [evictable layers, kv_heads] int64."""
    kv_heads, evictable = scores[0].attention_score.shape
    if spec.method.budget_rule == "pyramid":
        beta = float(spec.params["beta"])
        return pyramid_budgets(len(scores), kv_heads, spare, evictable, beta)
    if spec.method.budget_rule == "adaptive":
        safeguard = float(spec.params["safeguard"])
        return torch.stack(
            [adaptive_budgets(layer.attention_score, spare, safeguard) for layer in scores]
        )
    return uniform_budgets(len(scores), kv_heads, spare)


def _keep(spec: VariantSpec, scores: LayerScores, head_budgets: Tensor) -> Tensor:
    if spec.critical:
        return critical(scores, head_budgets, float(spec.params["alpha"]))
    return top_k(scores.attention_score, head_budgets)
