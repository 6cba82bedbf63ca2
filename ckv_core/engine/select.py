"""From one prefill to what each variant keeps: scores, budgets, selection."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ckv_core.budgets.adaptive import adaptive_budgets
from ckv_core.budgets.pyramid import pyramid_budgets
from ckv_core.budgets.uniform import uniform_budgets
from ckv_core.engine.orders import first_order, joint_order, order_keys, second_order
from ckv_core.engine.prefill import Prefill
from ckv_core.errors import RunCancelledError
from ckv_core.records import ModelInfo
from ckv_core.selection.critical import Ranking, first_stage
from ckv_core.selection.head_alpha import critical_auto
from ckv_core.selection.top_k import keep_first
from ckv_core.variants import VariantSpec

SLOTS_AT_ONCE = 2**18  # (layer, head, position) slots that are chosen from at a time


@dataclass(frozen=True, slots=True)
class Selection:
    """What one variant keeps.

    Attributes:
        budget: entries per KV head asked for, on average.
        keep_masks: per layer [kv_heads, prompt_len] bool; None where everything is kept.
        warnings: sentences for the receipt.
        head_alphas: [evictable layers, kv_heads] float32 where each head has its own; else None.
        elapsed_ms: what choosing took.
        requested_entries: of positions that were given; else budget x KV heads x layers.
    """

    budget: int
    keep_masks: tuple[Tensor | None, ...]
    warnings: tuple[str, ...]
    head_alphas: Tensor | None = None
    elapsed_ms: float = 0.0
    requested_entries: int | None = None


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

    The kept entries of a variant's evictable layers sum to
    layers x kv_heads x min(budget, prompt_len).

    Args:
        specs: the variants.
        prefill: the compressed prompt.
        budgets: per variant, entries per KV head.
        now: a clock in seconds; sorting counts for the variant that first needs it.
        should_stop: asked before each variant.

    Raises:
        RunCancelledError: `should_stop` said so.
    """
    found: dict[int, Selection] = {}
    # Variants that share orders follow one another, however few orders are kept.
    for row in sorted(range(len(specs)), key=lambda row: repr(order_keys(specs[row]))):
        if should_stop():
            raise RunCancelledError
        start = now()
        chosen = _choose(specs[row], prefill, budgets[row])
        found[row] = replace(chosen, elapsed_ms=(now() - start) * 1000)
    return [found[row] for row in range(len(specs))]


def stage_one(spec: VariantSpec, prefill: Prefill, selection: Selection) -> list[Tensor | None]:
    """What stage 1 alone keeps, always-kept entries included: N' of the paper.

    Args:
        spec: any variant; of one without CriticalKV, or without a score, it is all that it keeps.
        prefill: the compressed prompt.
        selection: of this variant.

    Returns:
        Per layer [kv_heads, prompt_len] bool; None where everything is kept.
    """
    if not spec.critical or spec.method.scorer == "none":
        return list(selection.keep_masks)
    sinks, window = spec.protected["sinks"], spec.protected["window"]
    alphas = selection.head_alphas
    masks = list(selection.keep_masks)
    for place, layer in enumerate(prefill.loaded.info.evictable_layers):
        mask = masks[layer]
        if mask is None:
            continue
        budgets = mask.sum(-1) - sinks - window
        quotas = (
            first_stage(budgets, float(spec.params["alpha"]))
            if alphas is None
            # 0.05 steps, told apart from what float32 makes of them
            else budgets * (alphas[place].to(mask.device) * 20).round().long() // 20
        )
        stage = torch.ones_like(mask)
        end = prefill.prompt_len - window
        first = first_order(spec, prefill)[place].to(mask.device)
        stage[:, sinks:end] = keep_first(first, quotas)
        masks[layer] = stage
    return masks


def _choose(spec: VariantSpec, prefill: Prefill, budget: int) -> Selection:
    info, prompt_len = prefill.loaded.info, prefill.prompt_len
    masks: list[Tensor | None] = [None] * info.layers
    if budget >= prompt_len:
        warnings = (
            f"The budget of {budget} tokens covers the whole compressed prompt of "
            f"{prompt_len} tokens: nothing was evicted.",
        )
        return Selection(budget, tuple(masks), () if spec.method.budget_rule == "all" else warnings)
    head_budgets = _head_budgets(spec, prefill, budget)
    layers = len(info.evictable_layers)
    shape, device = (layers, info.kv_heads, prompt_len), prefill.layers[0].keys.device
    kept = torch.ones(shape, dtype=torch.bool, device=device)
    scored = kept[..., spec.protected["sinks"] : prompt_len - spec.protected["window"]]
    head_alphas = torch.empty(layers, info.kv_heads, device=device)
    is_auto = spec.selector == "critical_auto"
    at_once = 1 if is_auto else max(1, SLOTS_AT_ONCE // (info.kv_heads * prompt_len))
    for start in range(0, layers, at_once):
        part = slice(start, start + at_once)
        if is_auto:
            scored[start], head_alphas[start] = _keep_auto(spec, prefill, start, head_budgets)
        else:
            scored[part] = _keep(spec, prefill, part, head_budgets[part])
    for place, layer in enumerate(info.evictable_layers):
        masks[layer] = kept[place].to(prefill.layers[layer].keys.device)
    return Selection(
        budget, tuple(masks), _nothing_chosen(spec, budget), head_alphas if is_auto else None
    )


def _nothing_chosen(spec: VariantSpec, budget: int) -> tuple[str, ...]:
    """A warning where the always-kept tokens use up the budget."""
    if budget > sum(spec.protected.values()):
        return ()
    return (
        f"The budget of {budget} tokens holds only what is always kept ({spec.protected_text}): "
        "no entry was chosen, whatever the method. Raise the budget, or lower what is always kept.",
    )


def _head_budgets(spec: VariantSpec, prefill: Prefill, budget: int) -> Tensor:
    """Entries beyond the protected ones, [evictable layers, kv_heads] int64 on the CPU."""
    layers, kv_heads = len(prefill.loaded.info.evictable_layers), prefill.loaded.info.kv_heads
    protected = sum(spec.protected.values())
    spare = budget - protected
    if spec.method.budget_rule == "adaptive":
        joint, safeguard = joint_order(spec, prefill), float(spec.params["safeguard"])
        return adaptive_budgets(joint, kv_heads, spare, safeguard)
    if spec.method.budget_rule == "pyramid":
        evictable, beta = prefill.prompt_len - protected, float(spec.params["beta"])
        return pyramid_budgets(layers, kv_heads, spare, evictable, beta)
    return uniform_budgets(layers, kv_heads, spare)


def _keep(spec: VariantSpec, prefill: Prefill, part: slice, head_budgets: Tensor) -> Tensor:
    """What some evictable layers keep, [layers, kv_heads, evictable] bool."""
    first = first_order(spec, prefill)[part]
    if not spec.critical:
        return keep_first(first, head_budgets)
    quotas = first_stage(head_budgets, float(spec.params["alpha"]))
    return Ranking(first, second_order(spec, prefill)[part]).keep(head_budgets, quotas)


def _keep_auto(
    spec: VariantSpec, prefill: Prefill, place: int, head_budgets: Tensor
) -> tuple[Tensor, Tensor]:
    """What one layer keeps under an alpha per head, and those alphas; see `critical_auto`."""
    layer = prefill.loaded.info.evictable_layers[place]
    attention = prefill.full_window_attention(layer, int(spec.params["window"]))
    orders = (first_order(spec, prefill)[place], second_order(spec, prefill)[place])
    ranking = Ranking(*(each.to(attention.device) for each in orders))
    norms, sinks = prefill.value_norms(layer), spec.protected["sinks"]
    return critical_auto(ranking, head_budgets[place], attention, norms, sinks)
