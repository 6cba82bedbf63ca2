"""The first decoding step, measured: every row reads the full run's first token."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ckv_core.base.lazy_torch import check_shape
from ckv_core.engine.decode import Decoder
from ckv_core.engine.generation import check_finite
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.select import Selection
from ckv_core.records.records import Float32Array, Perturbation


def head_l1(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    output_weight: Tensor,
    keep_masks: Sequence[Tensor],
) -> Tensor:
    """Isolated output perturbation ||(A - A')V W_O||_1 of every head (CriticalKV, eq. 5-6).

    A is the full run's attention of one decoding query; A' is A on the kept entries,
    renormalised. Query, keys and values are the full run's for every variant.

    Args:
        query: [query_heads, head_dim], after RoPE.
        keys: [kv_heads, entries, head_dim], all entries that the query sees, its own included.
        values: [kv_heads, entries, value_dim].
        scaling: factor of the logits.
        output_weight: [hidden, query_heads * value_dim], the weight of o_proj.
        keep_masks: per variant [kv_heads, entries] bool.

    Returns:
        [variants, query_heads] float32.
    """
    kv_heads, _, value_dim = values.shape
    query_heads = query.shape[0]
    attention = log_attention(query, keys, scaling).view(kv_heads, -1, keys.shape[1])
    # A head moves by sum_i (A_i - A'_i) V_i: one product per variant, no [entries, hidden] tensor.
    weight = output_weight.float().view(-1, query_heads, value_dim)
    result = []
    for mask in keep_masks:
        projected = torch.einsum("hv,dhv->hd", moved_heads(attention, values, mask), weight)
        result.append(projected.abs().sum(-1))
    return torch.stack(result) if result else query.new_empty(0, query_heads, dtype=torch.float32)


def log_attention(query: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Logarithm of one decoding query's attention, which has no smallest number to fall below.

    Of [query_heads, head_dim] over keys [kv_heads, entries, head_dim], both after RoPE, to
    [query_heads, entries] float32.
    """
    check_shape("query", query, "query_heads head_dim", {})
    grouped = query.float().view(keys.shape[0], -1, query.shape[1])
    return ((grouped @ keys.float().transpose(1, 2)) * scaling).log_softmax(-1).flatten(0, 1)


def moved_heads(log_attention: Tensor, values: Tensor, keep_mask: Tensor) -> Tensor:
    """How eviction moves each head's output before W_O: sum_i (A_i - A'_i) V_i.

    A' is the softmax over the kept entries, defined however little attention they have.

    Args:
        log_attention: [kv_heads, group_size, entries] float32.
        values: [kv_heads, entries, value_dim].
        keep_mask: [kv_heads, entries] bool, no row empty.

    Returns:
        [query_heads, value_dim] float32.
    """
    kept = log_attention.masked_fill(~keep_mask[:, None], -torch.inf).softmax(-1)
    difference = log_attention.exp() - kept
    return (difference @ values.float()).flatten(0, 1)


def hidden_l1(hidden: Tensor, reference: Tensor) -> Tensor:
    """Cascaded L1 distance of residual streams [rows, hidden_size] from the full run's: [rows]."""
    return (hidden.float() - reference.float()).abs().sum(-1)


def kl_divergence(logits: Tensor, reference: Tensor) -> Tensor:
    """KL(reference || row) of next-token distributions in nats, [rows, ...] float32, >= 0.

    Of logits [rows, ..., vocabulary] and the full run's.
    """
    log_reference = reference.float().log_softmax(-1)
    probabilities = log_reference.exp()
    # One row at a time and in place: a vocabulary is wide.
    negatives = [
        row.float().log_softmax(-1).sub_(log_reference).mul_(probabilities).sum(-1)
        for row in logits
    ]
    return (0.0 - torch.stack(negatives)).clamp_min_(0.0)  # the negative of 0.0 is -0.0


METRICS = ("l1", "l2", "cosine")


def distances(reference: Tensor, moved: Tensor) -> dict[str, Tensor]:
    """How far vectors lie from the full run's, [...] per name in METRICS.

    Cosine distance 1 - cos(a, b) is computed as half the squared distance of the unit vectors,
    which loses no digits where the vectors almost agree.

    Args:
        reference: [..., dim], the full run's vectors.
        moved: [..., dim], reference minus the evicted run's vectors.
    """
    units = torch.nn.functional.normalize(reference, dim=-1)
    other = torch.nn.functional.normalize(reference - moved, dim=-1)
    return {
        "l1": moved.abs().sum(-1),
        "l2": torch.linalg.vector_norm(moved, dim=-1),
        "cosine": (units - other).square().sum(-1) / 2,
    }


def head_weights(output_weight: Tensor, query_heads: int) -> Tensor:
    """W_O, the weight of o_proj, cut by heads: [query_heads, value_dim, hidden] float32."""
    return output_weight.float().T.reshape(query_heads, -1, output_weight.shape[0]).contiguous()


def project_heads(heads: Tensor, weights: Tensor) -> Tensor:
    """Heads [variants, query_heads, value_dim], each through its own slice of W_O, before a sum."""
    return (heads.float().transpose(0, 1) @ weights).transpose(0, 1)


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    logits: Tensor  # [rows, vocabulary]
    hidden: tuple[Tensor, ...]  # per layer [rows, hidden_size], the residual stream after the block
    # Per layer [rows, query_heads, value_dim], each head's output before W_O.
    heads: tuple[Tensor, ...]
    normed: Tensor  # [rows, hidden_size], the last block's output after the model's final norm

    def first(self, rows: int) -> "MeasuredStep":
        return MeasuredStep(
            self.logits[:rows],
            tuple(hidden[:rows] for hidden in self.hidden),
            tuple(heads[:rows] for heads in self.heads),
            self.normed[:rows],
        )


def measured_step(decoder: Decoder, token: int, reference: int, *, commit: bool) -> MeasuredStep:
    """Feed the full run's first token to every row and record what it does.

    `reference` is the row of the full cache; `commit` makes it every row's own next step too.
    """
    loaded, context = decoder.loaded, decoder.context
    rows = len(context.places)
    context.record_row = reference
    projections = [cast(nn.Module, attention.o_proj) for attention in loaded.attentions]
    vocabulary: nn.Module = loaded.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    with (
        _collected(loaded.layers, outputs=True) as hidden,
        _collected(projections) as outputs,
        _collected([vocabulary]) as normed,
    ):
        tokens = torch.full((rows, 1), token, device=loaded.device)
        logits = decoder.feed(tokens, commit=commit)
    context.record_row = None
    heads = tuple(output.view(rows, loaded.info.query_heads, -1) for output in outputs)
    return MeasuredStep(logits, tuple(hidden), heads, normed[0])


def perturbations(
    step: MeasuredStep,
    decoder: Decoder,
    prefill: Prefill,
    reference: int,
    selections: Sequence[tuple[int, Selection, Selection | None]],
) -> Iterator[tuple[int, Perturbation]]:
    """(row, perturbation) of each variant; EngineError where the step's logits are not finite.

    Args:
        step: the measured step.
        decoder: holds the full run's queries and tail.
        prefill: holds the full run's prompt entries.
        reference: the row that holds the full cache.
        selections: (row, what it keeps, what its base keeps or None).
    """
    # A base that is itself a variant is the same object, and measured once.
    wanted = {id(kept): kept for _, *pair in selections for kept in pair if kept is not None}
    distances = _head_l1(decoder, prefill, reference, list(wanted.values()))
    heads = dict(zip(wanted, distances, strict=True))
    layers = [hidden_l1(hidden, hidden[reference]).cpu() for hidden in step.hidden]
    cascaded = torch.stack(layers, dim=1).numpy()
    kl = kl_divergence(step.logits, step.logits[reference]).tolist()
    check_finite(kl)
    for row, chosen, base in selections:
        yield (
            row,
            Perturbation(
                head_l1=heads[id(chosen)],
                base_head_l1=None if base is None else heads[id(base)],
                layer_hidden_l1=cascaded[row],
                kl=kl[row],
            ),
        )


def _head_l1(
    decoder: Decoder, prefill: Prefill, reference: int, selections: Sequence[Selection]
) -> list[Float32Array]:
    """Per selection [layers, query_heads]; NaN in layers that are not evictable."""
    loaded, context = prefill.loaded, decoder.context
    info = loaded.info
    shape = (len(selections), info.layers, info.query_heads)
    result = np.full(shape, np.nan, dtype=np.float32)
    for layer in info.evictable_layers:
        states, query = prefill.layers[layer], context.recorded[layer]
        tail_keys, tail_values = context.tail(layer, reference)
        own = torch.ones_like(tail_keys[..., 0], dtype=torch.bool)
        everything = torch.ones_like(states.keys[..., 0], dtype=torch.bool)
        masks = [
            torch.cat([everything if mask is None else mask, own], dim=1)
            for mask in (chosen.keep_masks[layer] for chosen in selections)
        ]
        distances = head_l1(
            cast(Tensor, query),
            torch.cat([states.keys, tail_keys], dim=1),
            torch.cat([states.values, tail_values], dim=1),
            states.scaling,
            cast(nn.Linear, loaded.attentions[layer].o_proj).weight,
            masks,
        )
        result[:, layer] = distances.cpu().numpy()
    return list(result)


@contextmanager
def _collected(modules: Sequence[nn.Module], *, outputs: bool = False) -> Iterator[list[Tensor]]:
    """What goes into each module, or comes out of it, for the last token: [rows, width]."""
    collected: list[Tensor] = []

    def hook(_module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        first, *_ = output if outputs and isinstance(output, tuple) else (output,)
        collected.append((first if outputs else inputs[0])[:, -1].float())

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(hook))
        yield collected
