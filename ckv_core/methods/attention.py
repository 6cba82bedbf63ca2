"""Attention over one part of the keys, and what scores are made of.

A part has its log-sum-exp, which joins it with other parts. Scores are made of the window's
attention (SnapKV, arXiv:2404.14469) and norms of V W_O.
"""

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from ckv_core.base.devices import is_cuda_like
from ckv_core.base.lazy_torch import check_shape
from ckv_core.errors import is_out_of_memory
from ckv_core.methods.parts.scaling import Scaling, softmax

ROOMS = 16  # queries of a head that our CUDA kernel takes at once: a tensor core's rows
MAX_LOGITS = 2**24  # attention logits that exist at a time, 64 MiB of float32

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention
_FLASH_ON_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_HEAD_DIM = 256  # the largest that CUDA's flash kernel takes
_CUDNN = torch.ops.aten._scaled_dot_product_cudnn_attention
_CUDNN_TOLERANCE = 0.02  # bfloat16 holds eight bits

Part = tuple[Tensor, Tensor]  # output in float32, log of the part's softmax denominator


def partial(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: Scaling, mask: Tensor | None = None
) -> Part:
    """Attention over one part of the keys, none of which is the sink.

    Args:
        queries: [slots, queries, head_dim].
        keys: [slots, entries, head_dim].
        values: [slots, entries, value_dim].
        scaling: of the layer.
        mask: [queries, entries] bool, True = visible; a query may see nothing.

    Returns:
        Output [slots, queries, value_dim] float32 and log-sum-exp [slots, queries] float32.
    """
    if mask is None and keys.shape[1] and has_flash(queries, values, scaling):
        out, total = flash(queries[None], keys[None], values[None], scaling)
        return out[0].float(), total[0]
    return written_out(queries, keys, values, scaling, mask)


def has_flash(queries: Tensor, values: Tensor, scaling: Scaling) -> bool:
    """Whether `flash` serves such tensors [..., dim]; no kernel of PyTorch caps logits."""
    device, dim = queries.device, queries.shape[-1]
    if dim != values.shape[-1] or scaling.cap is not None:
        return False
    return device.type == "cpu" or has_cuda_flash(device, queries.dtype, dim)


def has_cuda_flash(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether PyTorch's flash kernel serves there: half precision, from Ampere on, small heads."""
    fits = dtype in (torch.float16, torch.bfloat16) and not head_dim % 8
    if not fits or head_dim > _FLASH_HEAD_DIM or not is_cuda_like(device):
        return False
    has_kernel = torch.backends.cuda.is_flash_attention_available()
    return has_kernel and torch.cuda.get_device_capability(device) >= (8, 0)


def flash(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: Scaling, *, is_causal: bool = False
) -> Part:
    """PyTorch's fused kernel, which holds no logits and tells their log-sum-exp.

    On CUDA it spreads the entries of few heads over the device by itself.

    Args:
        queries: [rows, heads, queries, head_dim]; the output is shaped alike, in their type.
        keys: [rows, heads or fewer, entries, head_dim], at least one entry; a group of query heads
            may share one.
        values: as keys.
        scaling: of the layer, without a cap.
        is_causal: the queries are of the last entries, and each sees those up to its own; on the
            CPU of all entries.
    """
    kernel = _FLASH_ON_CPU if queries.device.type == "cpu" else _FLASH
    out, total, *_ = kernel(queries, keys, values, is_causal=is_causal, scale=scaling.factor)
    return out, total


def cudnn(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: Scaling, *, is_causal: bool = False
) -> Part:
    """`flash` by cuDNN, which compiles a kernel for each shape; causal among as many entries."""
    out, total, *_ = _CUDNN(
        queries, keys, values, None, True, 0.0, is_causal=is_causal, scale=scaling.factor
    )
    return out, total.view(queries.shape[:3])


def has_cudnn(queries: Tensor, keys: Tensor, scaling: Scaling) -> bool:
    """Whether `cudnn` serves such tensors and is worth it: from Hopper on, it is the faster one."""
    device, dim = queries.device, queries.shape[-1]
    if scaling.cap is not None or not has_cuda_flash(device, queries.dtype, dim):
        return False
    if torch.cuda.get_device_capability(device) < (9, 0):
        return False
    return _cudnn_works(device, queries.dtype, dim, queries.shape[1] // keys.shape[1])


@cache
def _cudnn_works(device: torch.device, dtype: torch.dtype, head_dim: int, group: int) -> bool:
    """Whether it gives what the flash kernel gives, log-sum-exp too; tried once for each kind."""
    generator, scaling = torch.Generator().manual_seed(0), Scaling(0.1)
    queries, keys, values = (
        torch.randn(1, heads, 192, head_dim, generator=generator).to(device, dtype)
        for heads in (2 * group, 2, 2)
    )
    try:
        pairs = [
            (one, other)
            for causal in (False, True)
            for one, other in zip(
                cudnn(queries, keys, values, scaling, is_causal=causal),
                flash(queries, keys, values, scaling, is_causal=causal),
                strict=True,
            )
        ]
    except (RuntimeError, TypeError) as error:
        if is_out_of_memory(error):  # no property of the kernel: nothing may be remembered
            raise
        return False
    return all(
        torch.allclose(one.float(), other.float(), rtol=_CUDNN_TOLERANCE, atol=_CUDNN_TOLERANCE)
        for one, other in pairs
    )


def written_out(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: Scaling,
    mask: Tensor | None,
    bias: Tensor | None = None,
) -> Part:
    """Compute `partial` for any device, type, scaling and mask, in blocks of queries.

    `bias` [slots, entries] is added to logits.
    """
    block = max(1, MAX_LOGITS // (len(queries) * max(1, keys.shape[1])))
    parts = [
        _block(queries[:, part], keys, values, scaling, None if mask is None else mask[part], bias)
        for part in (slice(at, at + block) for at in range(0, queries.shape[1], block))
    ]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([out for out, _ in parts], 1), torch.cat([total for _, total in parts], 1)


def _block(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: Scaling,
    mask: Tensor | None,
    bias: Tensor | None,
) -> Part:
    """All queries at once; `logits` is worked on in place, for it is large."""
    logits = scaling.logits_(products(queries, keys))
    if bias is not None:
        logits += bias[:, None]
    if mask is not None:
        logits.masked_fill_(~mask, -torch.inf)
    total = logits.logsumexp(-1)
    logits -= total.clamp_min(torch.finfo(torch.float32).min)[..., None]
    return torch.bmm(logits.exp_().to(values.dtype), values).float(), total


def products(queries: Tensor, keys: Tensor) -> Tensor:
    """Dot products of queries [heads, queries, head_dim] and keys [heads, entries, head_dim].

    Returns [heads, queries, entries] in float32: half precision has no room for large logits and
    too few digits for softmax.
    """
    if queries.dtype != torch.float32 and is_cuda_like(queries.device):
        return torch.bmm(queries, keys.transpose(1, 2), out_dtype=torch.float32)
    return torch.bmm(queries.float(), keys.transpose(1, 2).float())


def join(one: Part, other: Part) -> Tensor:
    """Attention over two parts together, float32; at most one of them may be empty."""
    (out, total), (other_out, other_total) = one, other
    joint = torch.logaddexp(total, other_total)
    out = out * (total - joint).exp()[..., None]
    out += other_out * (other_total - joint).exp()[..., None]
    return out


def window_attention(window_queries: Tensor, keys: Tensor, scaling: Scaling) -> Tensor:
    """Mean attention that the window's queries give to each earlier entry.

    The softmax runs in float32 over all keys that a query may see, the window's own included.

    Args:
        window_queries: [query_heads, window, head_dim], the prompt's last queries after RoPE.
        keys: [kv_heads, prompt_len, head_dim], after RoPE.
        scaling: of the layer.

    Returns:
        [query_heads, prompt_len - window] float32.
    """
    return _mean(window_queries, keys, scaling, keys.shape[1] - window_queries.shape[1])


def full_window_attention(window_queries: Tensor, keys: Tensor, scaling: Scaling) -> Tensor:
    """Mean attention with the window's own columns: [query_heads, prompt_len].

    Rows sum to 1, less what a sink draws.
    """
    return _mean(window_queries, keys, scaling, keys.shape[1])


def window_rows(window_queries: Tensor, keys: Tensor, scaling: Scaling) -> Iterator[Tensor]:
    """The attention of each query of the window to all entries that it may see.

    Per query head [window, prompt_len] float32, on a CPU one head after another; rows sum to 1,
    less what a sink draws.
    """
    for _, rows in _window_rows(window_queries, keys, scaling):
        yield from rows


def _window_rows(
    window_queries: Tensor, keys: Tensor, scaling: Scaling
) -> Iterator[tuple[slice, Tensor]]:
    """Some query heads, and their rows [heads, window, prompt_len] as of `window_rows`."""
    check_shape("window_queries", window_queries, "query_heads window head_dim", {})
    query_heads, window, head_dim = window_queries.shape
    kv_heads, prompt_len, _ = keys.shape
    group_size = query_heads // kv_heads
    future = torch.ones(window, window, dtype=torch.bool, device=keys.device).triu(1)
    for heads in _at_a_time(query_heads, group_size, window * prompt_len, keys.device):
        shared = slice(heads.start // group_size, -(-heads.stop // group_size))
        queries = window_queries[heads].reshape(shared.stop - shared.start, -1, head_dim)
        logits = scaling.logits_(products(queries, keys[shared])).view(-1, window, prompt_len)
        logits[..., prompt_len - window :].masked_fill_(future, -torch.inf)
        sinks = None if scaling.sink is None else scaling.sink[heads, None].float()
        yield heads, softmax(logits, sinks)


def _at_a_time(
    query_heads: int, group_size: int, logits: int, device: torch.device
) -> Iterator[slice]:
    """Query heads whose logits, so many of each, exist together: on CUDA those of many."""
    some = MAX_LOGITS // (group_size * logits) if is_cuda_like(device) else 0
    step = max(1, some * group_size)
    return (slice(at, min(at + step, query_heads)) for at in range(0, query_heads, step))


def _mean(window_queries: Tensor, keys: Tensor, scaling: Scaling, columns: int) -> Tensor:
    query_heads = window_queries.shape[0]
    mean = torch.empty(query_heads, columns, dtype=torch.float32, device=keys.device)
    for heads, rows in _window_rows(window_queries, keys, scaling):
        mean[heads] = rows[..., :columns].mean(1)
    return mean


def value_norm(values: Tensor, output_weight: Tensor, order: int = 1) -> Tensor:
    """Norm of each value row through its query head's slice of W_O (L1: CriticalKV, eq. 8).

    Computed in blocks of positions: the [query_heads, prompt_len, hidden] product never exists.
    Of values [kv_heads, prompt_len, value_dim] and the weight of o_proj, [hidden, query_heads *
    value_dim]; [query_heads, prompt_len] float32.
    """
    check_shape("values", values, "kv_heads prompt_len value_dim", {})
    kv_heads, prompt_len, value_dim = values.shape
    hidden, width = output_weight.shape
    group_size = width // value_dim // kv_heads
    # [kv_heads, value_dim, group_size * hidden]: one product for all query heads of a KV head.
    weight = output_weight.view(hidden, kv_heads, group_size, value_dim).permute(1, 3, 2, 0)
    weight = weight.flatten(2).to(values.dtype)
    norms = torch.empty(kv_heads, prompt_len, group_size, dtype=torch.float32, device=values.device)
    positions = max(1, block_rows(on_cuda=is_cuda_like(values.device)) // group_size)
    for head in range(kv_heads):
        for start in range(0, prompt_len, positions):
            block = values[head, start : start + positions] @ weight[head]
            norms[head, start : start + positions] = torch.linalg.vector_norm(
                block.view(-1, group_size, hidden), ord=order, dim=-1, dtype=torch.float32
            )
    return norms.transpose(1, 2).flatten(0, 1)


def block_rows(*, on_cuda: bool) -> int:
    """Rows of V W_O that exist at a time: few for a CPU's cache, many for a GPU's launches."""
    return 16_384 if on_cuda else 1_024
