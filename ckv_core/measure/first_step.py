"""The first decoding step, measured: every row reads the full run's first token."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ckv_core.engine.decode import Decoder
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.running_rows import check_finite
from ckv_core.engine.select import Selection
from ckv_core.measure.perturbation import head_l1, hidden_l1, kl_divergence
from ckv_core.results.records import Float32Array, Perturbation


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
