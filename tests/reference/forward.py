"""Plain transformers passes with eager attention; evicted entries are masked, never removed.

Hooks on the model's own modules read the attention weights and the residual stream and put
minus infinity on evicted entries. The cache stays full, so positions and lengths are the
model's own and nothing has to be re-implemented per architecture.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

# [layer][kv head][position] for compressed positions; None = nothing is evicted in that layer.
Kept = list[list[list[bool]] | None]


@dataclass
class Tap:
    """What one pass showed, per layer: the last queries' attention and the residual stream."""

    rows: int
    attention: list[Tensor] = field(default_factory=list)  # [query_heads, rows, keys]
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
        per_head = mask.repeat(1, query_heads, 1, 1)
        for head in range(query_heads):
            row = evicted[head // group_size]
            per_head[0, head, :, : len(row)].masked_fill_(row, -torch.inf)
        return args, {**kwargs, "attention_mask": per_head}

    return hook


@contextmanager
def _hooks(model: Any, tap: Tap | None, kept: Kept | None) -> Iterator[None]:
    def see_attention(_module: Any, _args: Any, out: Any) -> None:
        tap.attention.append(out[1][0, :, -tap.rows :].clone())

    def see_hidden(_module: Any, _args: Any, out: Any) -> None:
        tap.hidden.append((out[0] if isinstance(out, tuple) else out)[0, -1].clone())

    with ExitStack() as hooks:
        for layer, block in enumerate(model.model.layers):
            if kept is not None and kept[layer] is not None:
                evict = _evicting_hook(kept[layer], model.config.num_attention_heads)
                attention = block.self_attn
                hooks.enter_context(attention.register_forward_pre_hook(evict, with_kwargs=True))
            if tap is not None:
                hooks.enter_context(block.self_attn.register_forward_hook(see_attention))
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
