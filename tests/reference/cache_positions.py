"""StreamingLLM's published cache, literally: keys without RoPE, turned by place at every step.

A plain transformers model whose own RoPE is taken out; what is evicted leaves the cache. Keys lie
at 0, 1, ... of the cache, a query at the place of its own entry.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import DynamicCache

from tests.reference.agnostic_scores import rotation
from tests.reference.forward import forward


def decode(
    model: Any,
    prompt: list[int],
    question: list[int],
    generated: list[int],
    budget: int,
    *,
    rolling: bool,
    sinks: int = 4,
) -> list[Tensor]:
    """Logits after each generated token; `rolling` evicts after each, too."""
    cache, found = DynamicCache(config=model.config), []
    with _positions_in_the_cache(model):
        forward(model, prompt, cache)
        _evict(cache, budget, sinks)
        if question:
            forward(model, question, cache)
        for token in generated:
            found.append(forward(model, [token], cache))
            if rolling:
                _evict(cache, budget, sinks)
    return found


def _evict(cache: DynamicCache, budget: int, sinks: int) -> None:
    for layer in cache.layers:
        length = layer.keys.shape[2]
        keep = [*range(sinks), *range(max(sinks, length - budget + sinks), length)]
        layer.keys, layer.values = layer.keys[:, :, keep], layer.values[:, :, keep]


@contextmanager
def _positions_in_the_cache(model: Any) -> Iterator[None]:
    own = sys.modules[type(model).__module__]
    with (
        patch.object(own, "apply_rotary_pos_emb", lambda query, key, *_a, **_k: (query, key)),
        patch.object(own, "eager_attention_forward", _attention),
    ):
        yield


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Tensor, scaling: float, **_k: Any
) -> tuple[Tensor, Tensor]:
    length, new = key.shape[2], query.shape[2]
    base = float(module.config.rope_parameters["rope_theta"])
    key = _turned(key, range(length), base).repeat_interleave(module.num_key_value_groups, 1)
    value = value.repeat_interleave(module.num_key_value_groups, 1)
    logits = _turned(query, range(length - new, length), base) @ key.mT * scaling
    future = torch.ones(new, length, dtype=torch.bool).triu(length - new + 1)
    weights = logits.masked_fill(future, -torch.inf).softmax(-1)
    return (weights @ value).transpose(1, 2), weights


def _turned(states: Tensor, places: range, base: float) -> Tensor:
    turns = torch.stack([rotation(place, states.shape[-1], base) for place in places])
    return torch.einsum("bhtd,ted->bhte", states.double(), turns.double()).float()
