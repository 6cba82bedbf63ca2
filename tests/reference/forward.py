"""Plain transformers passes with eager attention; evicted entries are masked, never removed.

Hooks on the model's own modules read the attention weights and the residual stream and put
minus infinity on evicted entries. The cache stays full, so positions and lengths are the
model's own and nothing has to be re-implemented per architecture.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from tests.reference.scores import layer_values, output_weight

# [layer][kv head][position] for compressed positions; None = nothing is evicted in that layer.
Kept = list[list[list[bool]] | None]


@dataclass
class Tap:
    """What one pass showed, by layer: the last queries' attention and the residual stream."""

    rows: int
    attention: dict[int, Tensor] = field(default_factory=dict)  # [query_heads, rows, keys]
    gates: dict[int, Tensor] = field(default_factory=dict)  # [query_heads, dim], of the last token
    hidden: list[Tensor] = field(default_factory=list)  # [hidden_size] after the block, last token


def evictable_layers(model: Any) -> list[int]:
    """Layers with full attention; sliding-window layers are never evicted from."""
    config = model.config
    types = getattr(config, "layer_types", None)
    if types is None:
        sliding = getattr(config, "sliding_window", None)
        types = ["full_attention" if sliding is None else "sliding"] * config.num_hidden_layers
    return [layer for layer, kind in enumerate(types) if kind == "full_attention"]


def _evicting_hook(kept: list[list[bool]], query_heads: int) -> Any:
    """Add minus infinity where the query head's KV head evicted an entry (h // group_size)."""
    evicted = ~torch.tensor(kept)
    group_size = query_heads // evicted.shape[0]

    def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mask = kwargs["attention_mask"]
        per_head = mask.expand(1, query_heads, -1, -1).clone()
        for head in range(query_heads):
            row = evicted[head // group_size]
            per_head[0, head, :, : len(row)].masked_fill_(row, -torch.inf)
        return args, {**kwargs, "attention_mask": per_head}

    return hook


@contextmanager
def _hooks(model: Any, tap: Tap | None, kept: Kept | None) -> Iterator[None]:
    def see_attention(module: Any, _args: Any, kwargs: dict[str, Any], out: Any) -> None:
        tap.attention[module.layer_idx] = out[1][0, :, -tap.rows :].clone()
        twice = 2 * module.config.num_attention_heads * module.head_dim
        if getattr(module, "q_proj", None) and module.q_proj.out_features == twice:
            own = module.q_proj(kwargs["hidden_states"][0, -1]).view(-1, 2, module.head_dim)
            tap.gates[module.layer_idx] = own[:, 1].sigmoid()

    def see_hidden(_module: Any, _args: Any, out: Any) -> None:
        tap.hidden.append((out[0] if isinstance(out, tuple) else out)[0, -1].clone())

    with ExitStack() as hooks:
        for layer, block in enumerate(model.model.layers):
            if kept is not None and kept[layer] is not None:
                evict = _evicting_hook(kept[layer], model.config.num_attention_heads)
                attention = block.self_attn
                hooks.enter_context(attention.register_forward_pre_hook(evict, with_kwargs=True))
            if tap is not None:
                if hasattr(block, "self_attn"):  # not one of linear attention
                    seen = block.self_attn.register_forward_hook(see_attention, with_kwargs=True)
                    hooks.enter_context(seen)
                hooks.enter_context(block.register_forward_hook(see_hidden))
        yield


@torch.no_grad()
def forward(
    model: Any,
    token_ids: list[int],
    cache: DynamicCache,
    *,
    tap: Tap | None = None,
    kept: Kept | None = None,
) -> Tensor:
    """Feed tokens after what the cache holds; logits [vocabulary] of the last one."""
    if model.config._attn_implementation != "eager":
        raise ValueError("the reference needs a model loaded with attn_implementation='eager'")
    with _hooks(model, tap, kept):
        out = model(
            input_ids=torch.tensor([token_ids]),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
    return out.logits[0, -1].float()


Held = list[list[int]]  # of one layer, ascending positions by KV head
LiteralPolicy = Callable[[int, int, Held, Tensor], Held]


def decode(
    model: Any,
    cache: DynamicCache,
    kept: Kept,
    read: list[int],
    generated: list[int],
    policy: LiteralPolicy,
) -> tuple[list[Tensor], list[Held | None]]:
    """Feed a question, then generated tokens; the policy acts after each of the latter.

    Args:
        model: with eager attention.
        cache: of the whole prompt.
        kept: what selection kept of it.
        read: the question's tokens, all of whose entries are held at first; may be empty.
        generated: tokens to feed one by one.
        policy: given step (from 1), layer, held positions and attention [query_heads, positions].

    Returns:
        Logits after each generated token, and what is held at the end, None where all is.
    """
    held: list[Held | None] = [
        None if heads is None else [[i for i, keep in enumerate(row) if keep] for row in heads]
        for heads in kept
    ]
    length = cache.get_seq_length()
    if read:
        forward(model, read, cache, kept=kept)
        for layer in held:
            for row in layer or []:
                row.extend(range(length, length + len(read)))
        length += len(read)
    found = []
    for step, token in enumerate(generated, start=1):
        tap = Tap(rows=1)
        now: Kept = [
            None if layer is None else [[i in set(row) for i in range(length)] for row in layer]
            for layer in held
        ]
        found.append(forward(model, [token], cache, tap=tap, kept=now))
        for index, layer in enumerate(held):
            if layer is not None:
                with_own = [[*row, length] for row in layer]
                held[index] = policy(step, index, with_own, tap.attention[index][:, 0])
        length += 1
    return found, held


class Heads:
    """Outputs of every head through W_O in one layer."""

    def __init__(self, model: Any, layer: int, tap: Tap, cache: Any) -> None:
        weight, values = output_weight(model, layer).double(), layer_values(cache, layer).double()
        self.attention = tap.attention[layer][:, -1].double()  # [query_heads, entries]
        self.has_sink = hasattr(model.model.layers[layer].self_attn, "sinks")
        self.sink = (1 - self.attention.sum(-1, keepdim=True)) * self.has_sink  # what it draws
        self.group = len(self.attention) // len(values)
        width = values.shape[-1]
        self.values = values.repeat_interleave(self.group, 0)
        self.weights = [
            weight[:, h * width : (h + 1) * width].T for h in range(len(self.attention))
        ]
        if layer in tap.gates:  # the token's gate lies between its heads and W_O
            pairs = zip(tap.gates[layer].double(), self.weights, strict=True)
            self.weights = [gate[:, None] * own for gate, own in pairs]
        projected = [v @ w for v, w in zip(self.values, self.weights, strict=True)]
        self.norms = torch.stack(projected).abs().sum(-1)  # [query_heads, entries]

    def keep(self, kept: Tensor) -> Tensor:
        """[kv_heads, compressed] bool to [query_heads, entries] with the tail."""
        tail = self.attention.shape[1] - kept.shape[1]
        whole = torch.cat([kept, torch.ones(len(kept), tail, dtype=torch.bool)], dim=1)
        return whole.repeat_interleave(self.group, 0)

    def output(self, keep: Tensor) -> Tensor:
        """[query_heads, hidden] of the attention on `keep`, renormalised; a sink always stays."""
        a = self.attention * keep
        mixed = torch.einsum("hn,hnv->hv", a / (a.sum(-1, keepdim=True) + self.sink), self.values)
        return torch.stack([row @ w for row, w in zip(mixed, self.weights, strict=True)])

    def losses(self, keep: Tensor) -> Tensor:
        """Head L1 of `keep` [query_heads, entries]."""
        return (self.output(torch.ones_like(keep)) - self.output(keep)).abs().sum(-1)


def head_l1(
    model: Any, full_tap: Tap, full_cache: DynamicCache, kept: Kept | None
) -> list[list[float] | None]:
    """Isolated head L1: ||(A - A') V W_O||_1 with the full run's query, keys and values.

    A' = N * A / sum(N * A), N true for kept entries, for every entry after the compressed
    prompt and for the step's own entry. None for layers from which nothing is evicted.
    """
    found: list[list[float] | None] = [None] * len(full_tap.hidden)
    for layer, own in enumerate(kept or []):
        if own is not None:
            heads = Heads(model, layer, full_tap, full_cache)
            found[layer] = heads.losses(heads.keep(torch.tensor(own))).tolist()
    return found


def output_sizes(model: Any, full_tap: Tap, full_cache: DynamicCache) -> list[list[float]]:
    """C = sum_i A_i ||v_i W_O||_1 per evictable layer and query head: the size of roundings."""
    result: list[list[float]] = [[] for _ in full_tap.hidden]
    for layer in evictable_layers(model):
        heads = Heads(model, layer, full_tap, full_cache)
        result[layer] = (heads.attention * heads.norms).sum(-1).tolist()
    return result


def hidden_l1(full_tap: Tap, tap: Tap) -> list[float]:
    """Cascaded ||x_l - x^_l||_1 of the residual stream after block l, before the final norm."""
    return [
        float((full.double() - evicted.double()).abs().sum())
        for full, evicted in zip(full_tap.hidden, tap.hidden, strict=True)
    ]


def kl_divergence(full_logits: Tensor, logits: Tensor) -> float:
    """KL(full || variant) of the next-token distributions, nats."""
    log_p = torch.log_softmax(full_logits.double(), dim=-1)
    log_q = torch.log_softmax(logits.double(), dim=-1)
    return float((log_p.exp() * (log_p - log_q)).sum())
