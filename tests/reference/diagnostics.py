"""The diagnostics's quantities by their definitions, in float64, from a plain eager model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from ckv_core.records.metrics import ANALYSIS_ARRAYS
from ckv_core.records.records import VariantResult
from tests.reference.comparison import Reference
from tests.reference.forward import Heads, Kept, Tap, evictable_layers
from tests.reference.head_alpha import head_alphas
from tests.reference.scores import first_stage_score, window_mean
from tests.reference.selection import top_k

Found = dict[str, np.ndarray]
METRICS = ("l1", "l2", "cosine")


def three(full: Tensor, evicted: Tensor) -> tuple[float, float, float]:
    """L1, L2 and cosine distance."""
    a, b = full.double(), evicted.double()
    cosine = 1 - float(a @ b) / max(float(a.norm() * b.norm()), 1e-300)
    return float((a - b).abs().sum()), float((a - b).norm()), cosine


class Searched(Heads):
    """With what the oracles choose."""

    def best(self, score: Tensor, fixed: list[bool], counts: list[int]) -> Tensor:
        """Per group, the protected entries and those of largest mean score."""
        best = torch.zeros(self.attention.shape, dtype=torch.bool)
        for head, count in enumerate(counts):
            part = slice(head * self.group, (head + 1) * self.group)
            mean = score[part].mean(0).tolist()
            order = sorted(range(len(mean)), key=lambda i: (not fixed[i], -mean[i], i))
            best[part, order[:count]] = True
        return best


@dataclass
class Literal:
    """All quantities of one run at the measured step, but those of the full cache's text."""

    slow: Reference
    variants: list[tuple[VariantResult, Kept]]

    def quantities(self) -> list[Found]:
        """Per variant, arrays by name; NaN in layers that are not evicted."""
        model, layers = self.slow.model, self.slow.model.config.num_hidden_layers
        own = [self.slow.first_step(kept)[:2] for _, kept in self.variants]
        found = [self._hidden(tap) for tap, _ in own]
        for at, (variant, _) in enumerate(self.variants):
            if "critical_auto" not in variant.spec:
                found[at]["stage1_alpha"] = np.array([variant.params.get("alpha", 0.25)])
        for layer in evictable_layers(model):
            heads = Searched(model, layer, *self.slow.full_step[:2])
            masks = [torch.tensor(kept[layer]) for _, kept in self.variants]
            for at, (variant, _) in enumerate(self.variants):
                fixed = protected(variant, masks[at].shape[1])
                first = self._stage_one(variant, layer, masks[at], fixed)
                cascaded = Heads(model, layer, *own[at])
                fixed += [True] * (heads.attention.shape[1] - len(fixed))
                parts = {
                    **_distances(heads, heads.keep(masks[at]), cascaded),
                    **_bounds(heads, heads.keep(masks[at]), heads.keep(first)),
                    **_oracles(heads, heads.keep(masks[at]), fixed),
                }
                if "critical_auto" in variant.spec:
                    parts["head_alpha"] = self._alphas(variant, layer, masks[at])
                for name in parts.keys() & ANALYSIS_ARRAYS.keys():
                    value = np.asarray(parts[name])
                    empty = np.full((layers, *value.shape), np.nan)
                    found[at].setdefault(name, empty)[layer] = value
        return found

    def _hidden(self, tap: Tap) -> Found:
        norm, full, own = self.slow.model.model.norm, self.slow.full_step[0].hidden, tap.hidden
        layers = [three(a.flatten(), b.flatten()) for a, b in zip(full, own, strict=True)]
        with torch.no_grad():
            normed = three(norm(full[-1]).flatten(), norm(own[-1]).flatten())
        found = {
            f"hidden_{m}": np.array(v)
            for m, v in zip(METRICS, zip(*layers, strict=True), strict=True)
        }
        found |= {f"normed_{m}": np.array([v]) for m, v in zip(METRICS, normed, strict=True)}
        found["hidden_norm_l1"] = np.array([float(x.double().abs().sum()) for x in full])
        return {name: value for name, value in found.items() if name in ANALYSIS_ARRAYS}

    def _stage_one(
        self, variant: VariantResult, layer: int, kept: Tensor, fixed: list[bool]
    ) -> Tensor:
        """N' without the tail, [kv_heads, compressed]."""
        n, params = kept.shape[1], dict(variant.params)
        if bool(kept.all()):
            return kept
        if "window" in params:
            attention = window_mean(self.slow.prefilled.tap.attention[layer], params["window"])
            scores = first_stage_score(attention, self.slow.prefilled.group_size, params)
        else:
            scores = [[float(i) for i in range(n)]] * len(kept)
        first = torch.tensor(fixed).expand_as(kept).clone()
        for head, row in enumerate(scores):
            alpha = float(params.get("alpha", 0.25))
            if "critical_auto" in variant.spec:
                alpha = round(float(variant.analysis["head_alpha"][layer, head]) * 20) / 20
            free = [i for i in range(n) if not fixed[i]]
            budget = int(kept[head].sum()) - sum(fixed)
            quota = math.floor(Fraction(str(alpha)) * budget)
            first[head, [free[i] for i in top_k([row[i] for i in free], quota)]] = True
        return first

    def _alphas(self, variant: VariantResult, layer: int, kept: Tensor) -> list[float]:
        budgets = (kept.sum(-1) - sum(protected(variant, kept.shape[1]))).tolist()
        asked = variant.analysis["head_alpha"][layer].tolist()
        return head_alphas(self.slow.prefilled, layer, dict(variant.params), budgets, asked)


def protected(variant: VariantResult, n: int) -> list[bool]:
    """What the variant never drops of the compressed prompt."""
    sinks, window = variant.params["sinks"], variant.params.get("window", 0)
    return [i < sinks or i >= n - window for i in range(n)]


def _distances(heads: Heads, keep: Tensor, own: Heads) -> Mapping[str, object]:
    whole = heads.output(torch.ones_like(keep))
    found: dict[str, object] = {}
    cascaded = own.output(torch.ones(own.attention.shape, dtype=torch.bool))
    for suffix, moved in (("", heads.output(keep)), ("_cascaded", cascaded)):
        each = [three(a, b) for a, b in zip(whole, moved, strict=True)]
        found |= {
            f"head_{m}{suffix}": v for m, v in zip(METRICS, zip(*each, strict=True), strict=True)
        }
        summed = three(whole.sum(0), moved.sum(0))
        found |= {f"attention_{m}{suffix}": v for m, v in zip(METRICS, summed, strict=True)}
    return found


def _bounds(heads: Heads, keep: Tensor, first: Tensor) -> Mapping[str, Tensor]:
    """Q8 to Q12 with N and N' [query_heads, entries]; a sink is of both, and has no value."""
    a, second = heads.attention, keep & ~first
    weighted = a * heads.norms
    total, sink = weighted.sum(-1), heads.sink[:, 0]
    sigma_kept, sigma = (a * keep).sum(-1) + sink, (a * first).sum(-1) + sink
    least = 0 if heads.has_sink else heads.norms.amin(-1)
    factor = 2 - 1 / sigma
    rest = total - factor * (weighted * first).sum(-1)
    largest = a.sort(descending=True).values
    return {
        "sigma_kept": sigma_kept,
        "sigma_stage1": sigma,
        "sigma_oracle": torch.stack(
            [row[: int(n.sum())].sum() for row, n in zip(largest, first, strict=True)]
        )
        + sink,
        "value_mass": total,
        "theta": total - (2 - 1 / sigma_kept) * (weighted * keep).sum(-1),
        "theta_hat": rest - factor * (weighted * second).sum(-1),
        "theta_relaxed": rest - factor * least * (a * second).sum(-1),
    }


def _oracles(heads: Searched, keep: Tensor, fixed: list[bool]) -> Mapping[str, Tensor]:
    counts = keep[:: heads.group].sum(-1).tolist()
    losses = {
        "attention": heads.losses(heads.best(heads.attention, fixed, counts)),
        "critical": heads.losses(heads.best(heads.attention * heads.norms, fixed, counts)),
    }
    return {f"oracle_{name}_l1": loss for name, loss in losses.items()}
