"""KVzip the slow way: plain transformers passes over copies of the cache, weights read off.

Instructions as github.com/snu-mllab/KVzip 5d84729 model/wrapper.py `self_task` has them, and as
kvpress 0.5.5 presses/kvzip_press.py `prepare`, which leaves out the space at the end.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from tests.reference.forward import Tap, forward
from tests.reference.scores import layer_values, output_weight

FIRST = "\n\nRepeat the previous context exactly."
NEXT = {
    "first": "\n\nRepeat the part of the previous context exactly, starting with ",
    "last": "\n\nRepeat the part of the previous context exactly, starting with",
}


def repeated(
    model: Any,
    encode: Any,
    token_ids: list[int],
    lead: int,
    closing: list[int],
    parameters: dict[str, Any],
) -> list[Tensor]:
    """Method sheet 2.17, per layer [query_heads, n]; layers that slide hold nothing meant.

    The softmax over some columns is the model's own, over all of them, divided by their sum.
    """
    n, size = len(token_ids), parameters["repeat"]
    cache = DynamicCache(config=model.config)
    forward(model, token_ids, cache)
    heads, layers = model.config.num_attention_heads, model.config.num_hidden_layers
    found = [Tensor([[0.0] * n for _ in range(heads)]) for _ in range(layers)]
    for start in range(lead, n, size):
        part = token_ids[start : start + size]
        words, overlap = NEXT[parameters["lead"]], token_ids[:start][lead:][-8:]
        asked = encode(FIRST) if start == lead else encode(words) + overlap
        fed = [*asked, *closing, *part]
        tap = Tap(rows=len(fed))
        sizes: list[Tensor] = []
        hooks = [
            layer.self_attn.register_forward_pre_hook(
                lambda _, __, given, to=sizes: to.append(
                    given["hidden_states"][0].double().norm(dim=-1)
                ),
                with_kwargs=True,
            )
            for layer in model.model.layers
        ]
        forward(model, fed, copy.deepcopy(cache), tap=tap)
        for hook in hooks:
            hook.remove()
        sinks = lead if parameters["lead"] == "first" else min(parameters["sinks"], start)
        for layer, weights in tap.attention.items():
            for head in range(heads):
                if weights.shape[-1] < n + len(fed):  # of a sliding layer
                    continue
                rows = weights[head].double()
                own = rows[:, start : start + len(part)]
                shared = rows[:, :sinks].sum(-1) + own.sum(-1) + rows[:, n:].sum(-1)
                if hasattr(model.model.layers[layer].self_attn, "sinks"):
                    shared += 1 - rows.sum(-1)
                own = own / shared[:, None]
                if parameters["plus"] == "on":
                    own = own / sizes[layer][:, None]
                found[layer][head, start : start + len(part)] = own.amax(0)
    if parameters["lead"] == "first":
        for each in found:
            each[:, :lead] = 1e30 if parameters["plus"] == "on" else 2.0
    return found


def weighed(model: Any, token_ids: list[int], scores: list[Tensor]) -> list[Tensor]:
    """KVzip+ of kvpress 0.5.5 presses/kvzip_press.py `score_kvzip`: times ||v W_O||_2."""
    cache = DynamicCache(config=model.config)
    forward(model, token_ids, cache)
    found = []
    for layer, each in enumerate(scores):
        values, weight = layer_values(cache, layer), output_weight(model, layer)
        dim, group = values.shape[-1], len(each) // len(values)
        norms = [
            (values[head // group] @ weight[:, head * dim : (head + 1) * dim].T).norm(dim=-1)
            for head in range(len(each))
        ]
        found.append(each * torch.stack(norms))
    return found


def kept(
    scores: list[list[list[float]]], sinks: int, behind: int, budget: int
) -> set[tuple[int, int, int]]:
    """(layer, KV head, position): what every head keeps, then the best of all layers together.

    Every head keeps the sinks and what stands from `behind` on.
    """
    fixed = [i for i in range(len(scores[0][0])) if i < sinks or i >= behind]
    places = [
        (-score, layer, head, i)
        for layer, heads in enumerate(scores)
        for head, row in enumerate(heads)
        for i, score in enumerate(row)
        if i not in fixed
    ]
    heads = len(scores) * len(scores[0])
    first = {(la, h, i) for la in range(len(scores)) for h in range(len(scores[0])) for i in fixed}
    return first | {place[1:] for place in sorted(places)[: heads * (budget - len(fixed))]}
