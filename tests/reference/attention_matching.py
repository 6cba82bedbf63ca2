"""Attention Matching the slow way: plain attention weights, least squares by NumPy.

As github.com/adamzweiger/compaction 2e59cc8 compaction/algorithms/highest_attention_keys.py and
base.py with score_method 'rms', two steps of `_nnls_pg` within e^-3 and e^3, and c2_method 'lsq'
with c2_ridge_scale 'spectral'; the ridge holds for the bias too. Logarithms of the attention are
logits up to a number per query, which leaves all of it as it is.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor
from transformers import DynamicCache

from tests.reference.forward import Kept, Tap, forward
from tests.reference.kvzip import FIRST, NEXT


def references(
    model: Any,
    encode: Any,
    token_ids: list[int],
    lead: int,
    closing: list[int],
    parameters: dict[str, Any],
) -> list[Any]:
    """Per layer [query_heads, rows, n], logarithms of attention to the prompt; None if it slides.

    The queries are those of tokens of the prompt, evenly chosen, while it is repeated.
    """
    n, size = len(token_ids), parameters["repeat"]
    rows = min(parameters["references"], n)
    chosen = {row * n // rows for row in range(rows)}
    cache = DynamicCache(config=model.config)
    forward(model, token_ids, cache)
    found: list[list[Any]] = [[] for _ in model.model.layers]
    for start in range(lead, n, size):
        part = token_ids[start : start + size]
        asked = encode(FIRST) if start == lead else encode(NEXT["first"])
        fed = [*asked, *token_ids[:start][lead:][-8:], *closing, *part]
        tap = Tap(rows=len(part))
        forward(model, fed, copy.deepcopy(cache), tap=tap)
        for layer, weights in tap.attention.items():
            if weights.shape[-1] == n + len(fed):
                own = [row for row in range(len(part)) if start + row in chosen]
                found[layer].append(np.log(weights[:, own, :n].double().numpy()))
    return [np.concatenate(each, axis=1) if each else None for each in found]


def of_kv_head(logs: Any, head: int, kv_heads: int) -> Any:
    """[rows, n] of all query heads that share a KV head, normalised over the prompt."""
    group = len(logs) // kv_heads
    own = np.concatenate(logs[head * group : (head + 1) * group])
    return own - np.log(np.exp(own).sum(-1, keepdims=True))


def scores(logs: Any, head: int, kv_heads: int) -> list[float]:
    attention = np.exp(of_kv_head(logs, head, kv_heads))
    return [math.sqrt(sum(p * p for p in column) / len(column)) for column in attention.T]


def largest(matrix: Any) -> float:
    """About the square of its largest singular value, as the authors' three power steps find it."""
    vector = np.full(matrix.shape[1], 1 / math.sqrt(matrix.shape[1]))
    for _ in range(3):
        vector = matrix.T @ (matrix @ vector)
        vector /= math.sqrt(float(vector @ vector))
    return float(vector @ (matrix.T @ (matrix @ vector)))


def least_squares(matrix: Any, target: Any, ridge: float) -> Any:
    """The ridge as rows of its own."""
    size = math.sqrt(ridge * largest(matrix)) * np.eye(matrix.shape[1])
    target = np.concatenate([target, np.zeros((matrix.shape[1], target.shape[1]))])
    return np.linalg.lstsq(np.concatenate([matrix, size]), target, rcond=None)[0]


def fit(logs: Any, values: Any, kept: list[int], ridge: float) -> tuple[Any, Any]:
    """Bias [kept] and values [kept, value_dim] of a KV head, from `of_kv_head`."""
    shifted = np.exp(logs - logs.max(-1, keepdims=True))
    drawn, mass = shifted[:, kept], shifted.sum(-1)
    factors = least_squares(drawn, mass[:, None], ridge)[:, 0]
    factors = np.clip(factors, math.exp(-3), math.exp(3))
    for _ in range(2):
        step = drawn.T @ (drawn @ factors - mass) / largest(drawn)
        factors = np.clip(factors - step, math.exp(-3), math.exp(3))
    shares = np.exp(logs[:, kept]) * factors
    shares /= shares.sum(-1, keepdims=True)
    return np.log(factors), least_squares(shares, np.exp(logs) @ values, ridge)


def match_kept(cache: DynamicCache, kept: Kept, logs: list[Any], ridge: float) -> list[Any]:
    """Put fitted values into a full cache; the biases by layer, [kv_heads, n]."""
    biases: list[Any] = [None] * len(kept)
    for layer, heads in enumerate(kept):
        if heads is None:
            continue
        biases[layer] = np.zeros((len(heads), len(heads[0])))
        for head, row in enumerate(heads):
            places = [i for i, keep in enumerate(row) if keep]
            own, values = of_kv_head(logs[layer], head, len(heads)), cache.layers[layer].values
            found = fit(own, values[0, head].double().numpy(), places, ridge)
            biases[layer][head, places], fitted = found
            values[0, head, places] = Tensor(fitted)
    return biases


@contextmanager
def biased(model: Any, biases: list[Any]) -> Iterator[None]:
    """Inside, each entry of the prompt has its bias added to its logits."""
    hooks = []
    for layer, bias in zip(model.model.layers, biases, strict=True):
        if bias is None:
            continue

        def hook(_module: Any, args: Any, kwargs: Any, bias: Any = bias) -> Any:
            heads = model.config.num_attention_heads
            mask = kwargs["attention_mask"].expand(1, heads, -1, -1).clone()
            for head in range(heads):
                own = Tensor(bias[head // (heads // len(bias))])
                mask[0, head, :, : len(own)] += own
            return args, {**kwargs, "attention_mask": mask}

        hooks.append(layer.self_attn.register_forward_pre_hook(hook, with_kwargs=True))
    yield
    for each in hooks:
        each.remove()
