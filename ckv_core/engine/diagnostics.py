"""The diagnostics's quantities at the measured step: distances, bounds and oracles per variant."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ckv_core.engine.candidates import PromptLayer, protected_mask
from ckv_core.engine.decode import Decoder
from ckv_core.engine.first_step import (
    METRICS,
    FullLayer,
    MeasuredStep,
    distances,
    head_weights,
    project_heads,
)
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.run import Run
from ckv_core.engine.select import Selection, stage_one
from ckv_core.errors import RunCancelledError
from ckv_core.methods.attention import value_norm
from ckv_core.methods.parts.critical import ALPHA, CRITICAL
from ckv_core.records.events import Progress, RunEvent, VariantAnalysed
from ckv_core.records.metrics import ANALYSIS_ARRAYS
from ckv_core.records.records import Float32Array


def bounds(attention: Tensor, norms: Tensor, kept: Tensor, stage_one: Tensor) -> dict[str, Tensor]:
    """Masses and bounds of the perturbation of every query head, in the type of `attention`.

    Symbols of the paper (section 3, appendix F): A attention of the decoding query in the full
    run, v_i the L1 norm of V_i W_O, N' the entries of stage 1, N'' those of stage 2, N = N' + N''.

    With D = sum of A v over the dropped entries and S = the same over the kept ones, theta =
    C - (2 - 1/sigma_N) S is computed as D + (1 - sigma_N)/sigma_N S (the paper's eq. 11), and
    theta-hat and its relaxed form likewise, so that no digits are lost where little is dropped.

    L1 <= theta always. theta <= theta_hat always. theta_hat <= theta_relaxed where sigma >= 0.5;
    below that the factor 2 - 1/sigma is negative and the last step turns around.

    Args:
        attention: [query_heads, entries], rows sum to 1.
        norms: [query_heads, entries].
        kept: [kv_heads, entries] bool, N.
        stage_one: [kv_heads, entries] bool, N'; part of N.

    Returns:
        sigma_stage1, sigma_kept, value_mass, theta, theta_hat and theta_relaxed, each
        [query_heads]; theta is NaN where the kept mass underflows.
    """
    kv_heads = kept.shape[0]
    masks = torch.stack([kept, ~kept, stage_one, ~stage_one, kept & ~stage_one], dim=-1)
    weighted = attention * norms
    least = norms.amin(-1, keepdim=True)
    parts = torch.stack([attention, weighted, attention * (norms - least)])
    grouped = parts.view(3, kv_heads, -1, attention.shape[1])
    sums = grouped @ masks.to(attention.dtype)
    mass, valued, above = sums.flatten(1, 2)
    tiny = torch.finfo(attention.dtype).tiny
    sigma_kept, dropped, sigma, outside, _ = mass.unbind(-1)
    kept_value, dropped_value = valued[:, 0], valued[:, 1]
    theta = dropped_value + dropped / sigma_kept.clamp_min(tiny) * kept_value
    # Attention too small for its type says nothing of what the kept entries would be weighted by.
    theta = theta.masked_fill(sigma_kept < tiny, torch.nan)
    theta_hat = dropped_value + outside / sigma.clamp_min(tiny) * kept_value
    slack = (sigma - outside) / sigma.clamp_min(tiny) * above[:, 4]
    return {
        "sigma_stage1": sigma,
        "sigma_kept": sigma_kept,
        "value_mass": weighted.sum(-1),
        "theta": theta,
        "theta_hat": theta_hat,
        "theta_relaxed": theta_hat + slack,
    }


def sigma_oracle(attention: Tensor, counts: Tensor) -> Tensor:
    """Largest attention mass that so many entries can hold, [query_heads].

    Of attention [query_heads, entries] and entries in N' per KV head, [kv_heads] int64 from 1 on.
    """
    mass = attention.sort(dim=-1, descending=True).values.cumsum(-1)
    group_size = attention.shape[0] // counts.shape[0]
    last = counts.repeat_interleave(group_size)[:, None] - 1
    return mass.gather(-1, last)[:, 0]


def oracle_mask(score: Tensor, protected: Tensor, counts: Tensor) -> Tensor:
    """Keep the protected entries and the best of the others; ties go to the earlier entry.

    Args:
        score: [kv_heads, entries].
        protected: [entries] or [1, entries] bool, kept in any case.
        counts: [kv_heads] int64 of True in each row of the result, protected ones included.
    """
    order = score.masked_fill(protected, torch.inf).argsort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(score.shape[-1], device=score.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, ranks) < counts[:, None]


@dataclass(frozen=True, slots=True)
class _LayerStep:
    """One layer of the full run, with what all variants are measured by."""

    full: FullLayer
    attention: Tensor  # [kv_heads, group_size, entries]
    norms: Tensor  # [kv_heads, group_size, entries] value norms
    values: Tensor  # [kv_heads, entries, value_dim] float32
    weights: Tensor  # [query_heads, value_dim, hidden], W_O by head

    @classmethod
    def of(cls, full: FullLayer, prompt: PromptLayer) -> "_LayerStep":
        attention = full.log_attention.exp()
        if full.gate is None:
            tail = value_norm(full.values[:, full.prompt_len :], full.output_weight)
            norms = torch.cat([prompt.value_norms(), tail], dim=1)
        else:  # the paper's bounds hold for W_O as the token's gate leaves it
            norms = value_norm(full.values, full.gated_weight)
        return cls(
            full=full,
            attention=attention,
            norms=norms.view(attention.shape),
            values=full.values.float(),
            weights=head_weights(full.output_weight, len(full.query)),
        )

    def head_l1(self, keep_mask: Tensor) -> Tensor:
        """Isolated head L1 of a kept set, [query_heads]."""
        moved = self.full.moved_heads(keep_mask)
        return project_heads(moved[None], self.weights)[0].abs().sum(-1)


@dataclass(frozen=True, slots=True)
class _Kept:
    """One variant in one layer: N and N' [kv_heads, entries] bool, and what it never drops.

    The latter, [1, entries] bool, is one row for all KV heads; all with the tail.
    """

    mask: Tensor
    stage_one: Tensor
    protected: Tensor


def analyse(
    run: Run, step: MeasuredStep, decoder: Decoder, prefilled: Prefill, selections: list[Selection]
) -> Iterator[RunEvent]:
    """Arrays of every variant but `full`; NaN in layers that are not evicted.

    N', the set that sigma and theta-hat speak of, holds what a variant never drops (sinks,
    window, everything after the compressed prompt) and the first floor(alpha * B) of its other B
    entries per KV head by its own stage-1 score. For variants without CriticalKV alpha is the one
    of the run, or the default in a run of several, so that theorem 4's bound of plain selection can
    be compared; `stage1_alpha` records which it was. StreamingLLM's own score is recency. A variant
    that evicts nothing has everything in N'.
    """
    rows = [row for row in range(len(run.specs)) if row != run.reference]
    alphas = run.request.alphas
    alpha = ALPHA.parse(alphas[0]) if len(alphas) == 1 else ALPHA.default
    # Where a variant has a score and no stage 1 of its own, the run's alpha makes one.
    specs = [
        spec
        if spec.critical or spec.method.scorer is None
        else spec.with_selector(CRITICAL, alpha=alpha)
        for spec in (run.specs[row] for row in rows)
    ]
    stages = [
        stage_one(spec, prefilled, selections[row]) for row, spec in zip(rows, specs, strict=True)
    ]
    info = run.loaded.info
    arrays: list[dict[str, Float32Array]] = [{} for _ in rows]
    for row, spec, found in zip(rows, specs, arrays, strict=True):
        found.update(_hidden(step, run.reference, row))
        if "alpha" in spec.params:
            found["stage1_alpha"] = np.array([spec.params["alpha"]], np.float32)
    for done, layer in enumerate(info.evictable_layers):
        yield Progress("analyse", done / len(info.evictable_layers), f"layer {layer + 1}")
        if run.should_stop():
            raise RunCancelledError
        with run.stopwatch.measure("analyse"):
            full = FullLayer.of(decoder, prefilled, layer, run.reference)
            state = _LayerStep.of(full, PromptLayer(prefilled, layer))
            outputs = step.heads[layer]
            for row, stage, found in zip(rows, stages, arrays, strict=True):
                sets = selections[row].keep_masks[layer], stage[layer]
                kept = _Kept(
                    *map(full.extend, (*sets, protected_mask(run.specs[row], full.prompt_len)))
                )
                moved = outputs[run.reference] - outputs[row]
                _put(found, layer, info.layers, _measure(state, kept, moved))
    for row, found in zip(rows, arrays, strict=True):
        yield VariantAnalysed(row, found)


def _measure(state: _LayerStep, variant: _Kept, cascaded: Tensor) -> dict[str, Tensor]:
    """Distances, bounds and the two ranked oracles of one variant in one layer.

    `cascaded` is the full run's head outputs minus its own, [query_heads, value_dim].
    """
    attention, norms = state.attention.flatten(0, 1), state.norms.flatten(0, 1)
    whole = state.full.scaling.completed(attention, norms)
    others = whole[0].shape[1] - attention.shape[1]  # the sink, which no variant drops
    sets = (
        functional.pad(each, (0, others), value=True) for each in (variant.mask, variant.stage_one)
    )
    measured = bounds(*whole, *sets)
    sink = whole[0][:, attention.shape[1] :].sum(-1)
    measured["sigma_oracle"] = sigma_oracle(attention, variant.stage_one.sum(-1)) + sink
    scores = {"attention": state.attention, "critical": state.attention * state.norms}
    for name, score in scores.items():
        best = oracle_mask(score.mean(1), variant.protected, variant.mask.sum(-1))
        measured[f"oracle_{name}_l1"] = state.head_l1(best)
    whole_heads = state.full.gated((state.attention @ state.values).flatten(0, 1))
    full = project_heads(whole_heads[None], state.weights)[0]
    moves = torch.stack([state.full.moved_heads(variant.mask), cascaded])
    both = project_heads(moves, state.weights)
    for suffix, moved in zip(("", "_cascaded"), both, strict=True):
        heads, summed = distances(full, moved), distances(full.sum(0), moved.sum(0))
        measured |= {f"head_{metric}{suffix}": heads[metric] for metric in METRICS}
        measured |= {f"attention_{metric}{suffix}": summed[metric] for metric in METRICS}
    return {name: value for name, value in measured.items() if name in ANALYSIS_ARRAYS}


def _put(
    arrays: dict[str, Float32Array], layer: int, layers: int, measured: dict[str, Tensor]
) -> None:
    """Write one layer's values into its place of arrays that begin as NaN."""
    for name, value in measured.items():
        if name not in arrays:
            arrays[name] = np.full((layers, *value.shape), np.nan, dtype=np.float32)
        arrays[name][layer] = value.cpu().numpy()


def _hidden(step: MeasuredStep, reference: int, row: int) -> dict[str, Float32Array]:
    """Distances of the residual stream after each layer, and after the final norm."""
    place = step.normed.device  # layers may lie on several GPUs
    stream = torch.stack([hidden[[reference, row]].to(place) for hidden in step.hidden])
    layers = distances(stream[:, 0], stream[:, 0] - stream[:, 1])
    normed = distances(step.normed[reference], step.normed[reference] - step.normed[row])
    found = {f"hidden_{metric}": layers[metric] for metric in ("l2", "cosine")}
    found["hidden_norm_l1"] = stream[:, 0].abs().sum(-1)
    found |= {f"normed_{metric}": normed[metric][None] for metric in METRICS}
    return {name: value.float().cpu().numpy() for name, value in found.items()}
