"""From one prefill to what each variant keeps: scores, budgets, selection."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ckv_core.budgets.adaptive import adaptive_budgets
from ckv_core.budgets.pyramid import pyramid_budgets
from ckv_core.budgets.uniform import uniform_budgets
from ckv_core.engine.prefill import Prefill
from ckv_core.knobs import KnobValue
from ckv_core.records import ModelInfo
from ckv_core.scoring.layer_scores import LayerScores, window_scores
from ckv_core.scoring.position import recency
from ckv_core.selection.critical import Ranking, first_stage
from ckv_core.selection.head_alpha import critical_auto
from ckv_core.selection.top_k import ranks
from ckv_core.variants import VariantSpec

# What the scores of a variant depend on; budget, alpha and budget rule are not among them.
_BASE_KEYS = ("window", "kernel", "pool", "group", "sinks")
_CRITICAL_KEYS = (*_BASE_KEYS, "stage2", "norm", "product", "epsilon")


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
) -> list[Selection]:
    """Choose what every variant keeps, layer by layer; equal scores are sorted once.

    The kept entries of a variant's evictable layers sum to
    layers x kv_heads x min(budget, prompt_len).

    Args:
        specs: the variants.
        prefill: the compressed prompt.
        budgets: per variant, entries per KV head.
        now: a clock in seconds; work on scores counts for the variant that first needs them.
    """
    choices = [_Choice(spec, prefill, budget) for spec, budget in zip(specs, budgets, strict=True)]
    for place, layer in enumerate(prefill.loaded.info.evictable_layers):
        sorted_scores = _Layer(prefill, layer)
        for choice in choices:
            start = now()
            choice.take(sorted_scores, place)
            choice.seconds += now() - start
    return [choice.selection() for choice in choices]


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
            else budgets * (alphas[place] * 20).round().long() // 20
        )
        stage = torch.ones_like(mask)
        end = prefill.prompt_len - window
        stage[:, sinks:end] = _Layer(prefill, layer).first(spec) < quotas[:, None]
        masks[layer] = stage
    return masks


class _Choice:
    """One variant while its layers are gone through."""

    def __init__(self, spec: VariantSpec, prefill: Prefill, budget: int) -> None:
        self.spec, self.budget = spec, budget
        self.seconds = 0.0
        info = prefill.loaded.info
        self._prompt_len, self._kv_heads = prefill.prompt_len, info.kv_heads
        self._masks: list[Tensor | None] = [None] * info.layers
        self._alphas: list[Tensor] = []
        self._evicts = budget < prefill.prompt_len
        self._protected = sum(spec.protected.values())
        evictable = self._prompt_len - self._protected
        layers, spare = len(info.evictable_layers), budget - self._protected
        self._static: Tensor | None = None
        if not self._evicts or spec.method.budget_rule == "adaptive":
            return
        if spec.method.budget_rule == "pyramid":
            beta = float(spec.params["beta"])
            self._static = pyramid_budgets(layers, self._kv_heads, spare, evictable, beta)
        else:
            self._static = uniform_budgets(layers, self._kv_heads, spare)

    def take(self, layer: "_Layer", place: int) -> None:
        """Choose in one layer, the `place`th evictable one."""
        if not self._evicts:
            return
        first = layer.first(self.spec)
        if self._static is None:
            attention = layer.scores(self.spec, critical=False).attention_score
            spare = self.budget - self._protected
            budgets = adaptive_budgets(attention, spare, float(self.spec.params["safeguard"]))
        else:
            budgets = self._static[place]
        budgets = budgets.to(first.device)
        mask = first.new_ones(self._kv_heads, self._prompt_len, dtype=torch.bool)
        sinks, window = self.spec.protected["sinks"], self.spec.protected["window"]
        mask[:, sinks : self._prompt_len - window] = self._keep(layer, first, budgets)
        self._masks[layer.index] = mask

    def _keep(self, layer: "_Layer", first: Tensor, budgets: Tensor) -> Tensor:
        if not self.spec.critical:
            return first < budgets[:, None]
        ranking = layer.ranking(self.spec)
        if self.spec.selector == "critical":
            quotas = first_stage(budgets, float(self.spec.params["alpha"]))
            return ranking.keep(budgets, quotas)
        attention = layer.full_attention(int(self.spec.params["window"]))
        sinks = self.spec.protected["sinks"]
        mask, alphas = critical_auto(ranking, budgets, attention, layer.norms, sinks)
        self._alphas.append(alphas)
        return mask

    def selection(self) -> Selection:
        """The result, once every layer has been taken."""
        warnings: tuple[str, ...] = ()
        if not self._evicts and self.spec.method.budget_rule != "all":
            warnings = (
                f"The budget of {self.budget} tokens covers the whole compressed prompt of "
                f"{self._prompt_len} tokens: nothing was evicted.",
            )
        alphas = torch.stack(self._alphas) if self._alphas else None
        elapsed_ms = self.seconds * 1000
        return Selection(self.budget, tuple(self._masks), warnings, alphas, elapsed_ms)


class _Layer:
    """Scores of one layer and their orders, kept for all variants that share them."""

    def __init__(self, prefill: Prefill, index: int) -> None:
        self.index = index
        self._prefill = prefill
        self._kv_heads = prefill.loaded.info.kv_heads
        self._scores: dict[tuple[KnobValue, ...], LayerScores] = {}
        self._first: dict[tuple[KnobValue, ...], Tensor] = {}
        self._rankings: dict[tuple[KnobValue, ...], Ranking] = {}

    @property
    def norms(self) -> Tensor:
        """Value norms, [query_heads, prompt_len]."""
        return self._prefill.value_norms(self.index)

    def full_attention(self, window: int) -> Tensor:
        """Mean window attention of all columns, [query_heads, prompt_len]."""
        return self._prefill.full_window_attention(self.index, window)

    def scores(self, spec: VariantSpec, *, critical: bool) -> LayerScores:
        """Scores of the entries that this variant may evict."""
        key = _key(spec, _CRITICAL_KEYS if critical else _BASE_KEYS)
        if key not in self._scores:
            self._scores[key] = self._compute(spec, critical=critical)
        return self._scores[key]

    def first(self, spec: VariantSpec) -> Tensor:
        """Rank of each entry by the base score, [kv_heads, evictable]."""
        key = _key(spec, _BASE_KEYS)
        if key not in self._first:
            self._first[key] = ranks(self.scores(spec, critical=False).attention_score)
        return self._first[key]

    def ranking(self, spec: VariantSpec) -> Ranking:
        """Both orders of a variant with CriticalKV."""
        key = _key(spec, _CRITICAL_KEYS)
        if key not in self._rankings:
            scores = self.scores(spec, critical=True)
            self._rankings[key] = Ranking.of(scores, self.first(spec))
        return self._rankings[key]

    def _compute(self, spec: VariantSpec, *, critical: bool) -> LayerScores:
        if spec.method.scorer == "position":
            evictable = self._prefill.prompt_len - spec.protected["sinks"]
            device = self._prefill.layers[self.index].keys.device
            return LayerScores(recency(self._kv_heads, evictable, device), None)
        attention = self._prefill.window_attention(self.index, int(spec.params["window"]))
        norms = self.norms if critical else None
        return window_scores(attention, norms, self._kv_heads, spec.params)


def _key(spec: VariantSpec, keys: Sequence[str]) -> tuple[KnobValue, ...]:
    return (spec.method.scorer, *(spec.params.get(key, "") for key in keys))
