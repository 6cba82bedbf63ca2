"""KVgrad the slow way: plain transformers passes with autograd, attention and gradient read off.

As kvpress 0.5.5 presses/kvgrad_press.py: the objective is the sum of the last block's squared
outputs over the pass, and its gradient is taken by what each attention module returns.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from tests.reference.forward import forward
from tests.reference.kvzip import FIRST, NEXT


def attributed(
    model: Any,
    encode: Any,
    token_ids: list[int],
    lead: int,
    closing: list[int],
    parameters: dict[str, Any],
) -> list[Tensor]:
    """Per layer [query_heads, n], before the value norm; layers that slide hold nothing meant."""
    n, size = len(token_ids), parameters["repeat"]
    cache = DynamicCache(config=model.config)
    forward(model, token_ids, cache)
    heads, layers = model.config.num_attention_heads, model.config.num_hidden_layers
    found = [Tensor([[0.0] * n for _ in range(heads)]) for _ in range(layers)]
    for start in range(lead, n, size):
        part = token_ids[start : start + size]
        words, overlap = NEXT["last"], token_ids[:start][lead:][-8:]  # its authors' are kvpress's
        asked = encode(FIRST) if start == lead else encode(words) + overlap
        fed = [*asked, *closing, *part]
        attended: list[tuple[Tensor, Tensor]] = []  # output and weights by layer
        last: list[Tensor] = []
        hooks = [
            layer.self_attn.register_forward_hook(lambda _, __, out, to=attended: to.append(out))
            for layer in model.model.layers
        ]
        hooks.append(
            model.model.layers[-1].register_forward_hook(
                lambda _, __, out, to=last: to.append(out if isinstance(out, Tensor) else out[0])
            )
        )
        embedded = model.get_input_embeddings()(torch.tensor([fed])).detach().requires_grad_()
        model.model(inputs_embeds=embedded, past_key_values=copy.deepcopy(cache), use_cache=True)
        for hook in hooks:
            hook.remove()
        outputs = [out for out, _ in attended]
        (last[0] ** 2).sum().backward(inputs=outputs)
        sinks = lead if parameters["lead"] == "first" else min(parameters["sinks"], start)
        for layer in range(layers):
            rows = attended[layer][1][0].detach().double()
            if rows.shape[-1] < n + len(fed):  # of a sliding layer
                continue
            sizes = outputs[layer].grad[0].double().norm(dim=-1)
            for head in range(heads):
                seen = rows[head]
                own = seen[:, start : start + len(part)]
                shared = seen[:, :sinks].sum(-1) + own.sum(-1) + seen[:, n:].sum(-1)
                if hasattr(model.model.layers[layer].self_attn, "sinks"):
                    shared += 1 - seen.sum(-1)
                weighed = own / shared[:, None] * sizes[:, None]
                found[layer][head, start : start + len(part)] = weighed.amax(0)
    if parameters["lead"] == "first":
        for each in found:
            each[:, :lead] = 1e30
    return found
