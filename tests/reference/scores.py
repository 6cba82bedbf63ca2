"""Window scores, smoothing, group reduction and value norms, one head at a time.

A "row" is a list of floats over prompt positions. Python floats are float64.
"""

from typing import Any

from torch import Tensor

Row = list[float]


def window_mean(attention: Tensor, window: int) -> list[Row]:
    """Design 2, scorer `window`: mean over the last `window` queries, columns < n - window.

    Args:
        attention: [query_heads, at least window, n], softmax over all n keys.
    """
    rows = attention[:, -window:, :].double().mean(dim=1)
    return [row[: attention.shape[-1] - window].tolist() for row in rows]


def pooled(row: Row, kind: str, kernel: int) -> Row:
    """Stride 1, kernel // 2 padding: zeros that count for avg, nothing for max."""
    if kind == "none":
        return list(row)
    half = kernel // 2
    out = []
    for i in range(len(row)):
        seen = row[max(0, i - half) : i + half + 1]
        out.append(max(seen) if kind == "max" else sum(seen) / kernel)
    return out


def group_reduced(rows: list[Row], group_size: int, how: str) -> list[Row]:
    """Query head h belongs to KV head h // group_size; mean or max over the group."""
    out = []
    for first in range(0, len(rows), group_size):
        columns = zip(*rows[first : first + group_size], strict=True)
        out.append([max(c) if how == "max" else sum(c) / group_size for c in columns])
    return out


def value_norms(values: Tensor, output_weight: Tensor, query_heads: int) -> list[Row]:
    """Method sheet 0: nu[h, i] = || v[h // g, i] . W_O^(h) ||_1.

    Args:
        values: [kv_heads, n, head_dim].
        output_weight: o_proj.weight [hidden_size, query_heads * head_dim].
    """
    kv_heads, _, head_dim = values.shape
    group_size = query_heads // kv_heads
    norms = []
    for head in range(query_heads):
        columns = output_weight[:, head * head_dim : (head + 1) * head_dim]
        projected = values[head // group_size].double() @ columns.double().T
        norms.append(projected.abs().sum(dim=-1).tolist())
    return norms


def first_stage_score(attention: list[Row], group_size: int, params: dict[str, Any]) -> list[Row]:
    """Design 2: pool each query head, then reduce over the group -> [kv_heads][n - window]."""
    smooth = [pooled(row, params["pool"], params["kernel"]) for row in attention]
    return group_reduced(smooth, group_size, params["group"])


def second_stage_score(
    attention: list[Row], norms: list[Row], group_size: int, params: dict[str, Any]
) -> list[Row]:
    """Algorithm 2 line 9, A times || V W_O ||_1, by stage2, norm, product and epsilon.

    Args:
        attention: un-pooled window mean per query head.
        norms: value norm per query head, same columns.
    """
    if params["stage2"] == "pooled":
        attention = [pooled(row, params["pool"], params["kernel"]) for row in attention]
    if params["norm"] == "off":
        norms = [[1.0] * len(row) for row in attention]
    epsilon = params["epsilon"]
    if params["product"] == "head":
        products = [
            [(a + epsilon) * nu for a, nu in zip(row, norm, strict=True)]
            for row, norm in zip(attention, norms, strict=True)
        ]
        return group_reduced(products, group_size, params["group"])
    return [
        [(a + epsilon) * nu for a, nu in zip(row, norm, strict=True)]
        for row, norm in zip(
            group_reduced(attention, group_size, params["group"]),
            group_reduced(norms, group_size, "mean"),
            strict=True,
        )
    ]


def output_weight(model: Any, layer: int) -> Tensor:
    """o_proj.weight of one layer."""
    weight: Tensor = model.model.layers[layer].self_attn.o_proj.weight
    return weight.detach()


def layer_values(cache: Any, layer: int) -> Tensor:
    """Values [kv_heads, n, head_dim] as the plain cache holds them."""
    values: Tensor = cache.layers[layer].values[0]
    return values
