"""The first decoding step, measured, and how far rounding alone moves it.

Every row reads the full run's first token.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from ckv_core.engine.cache.slots import PromptSlots, SlotCache, StateCache
from ckv_core.engine.decode import Decoder
from ckv_core.engine.generation import check_finite
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.rows import Rows, whole_slots
from ckv_core.engine.select import Selection
from ckv_core.methods.attention import Part, join, partial
from ckv_core.methods.parts.scaling import Scaling, softmax
from ckv_core.models.attention import calls_shown, gate_of
from ckv_core.records.records import Float32Array, Perturbation, RoundingFloor


@dataclass(frozen=True)
class FullLayer:
    """One layer of the full run at the measured step; entries are the prompt's and the tail's."""

    query: Tensor  # [query_heads, head_dim], after RoPE
    keys: Tensor  # [kv_heads, entries, head_dim], all that the query sees, its own included
    values: Tensor  # [kv_heads, entries, value_dim]
    scaling: Scaling
    output_weight: Tensor  # [hidden, query_heads * value_dim], the weight of o_proj
    prompt_len: int  # compressed tokens
    # [query_heads, value_dim], what the token multiplies its heads' output by; None: no gate.
    gate: Tensor | None = None

    @classmethod
    def of(cls, decoder: Decoder, prefill: Prefill, layer: int, reference: int) -> Self:
        """`reference` is the row of the full cache."""
        states, tail = prefill.layers[layer], decoder.context.tail(layer, reference)
        return cls(
            query=cast(Tensor, decoder.context.recorded[layer]),
            keys=torch.cat([states.keys, tail[0]], dim=1),
            values=torch.cat([states.values, tail[1]], dim=1),
            scaling=states.scaling,
            output_weight=cast(nn.Linear, prefill.loaded.attentions[layer].o_proj).weight,
            prompt_len=prefill.prompt_len,
            gate=decoder.context.gates.get(layer),
        )

    def extend(self, mask: Tensor | None) -> Tensor:
        """A mask of the prompt with the tail, all of which is kept, [kv_heads, entries] bool."""
        everything = torch.ones_like(self.keys[..., 0], dtype=torch.bool)
        if mask is not None:
            everything[:, : self.prompt_len] = mask
        return everything

    @cached_property
    def _logged(self) -> tuple[Tensor, Tensor | None]:
        """Logarithms, which have no smallest number to fall below, of what entries and sink draw.

        [kv_heads, group_size, entries] and [kv_heads, group_size] float32.
        """
        grouped = self.query.float().view(len(self.keys), -1, self.query.shape[1])
        logits = self.scaling.logits_(grouped @ self.keys.float().transpose(1, 2))
        sink = self.scaling.grouped_sink(len(self.keys))
        if sink is None:
            return logits.log_softmax(-1), None
        whole = torch.cat([logits, sink[..., None]], -1).log_softmax(-1)
        return whole[..., :-1], whole[..., -1]

    @property
    def log_attention(self) -> Tensor:
        """Logarithm of the attention, [kv_heads, group_size, entries] float32."""
        return self._logged[0]

    def moved_heads(self, keep_mask: Tensor) -> Tensor:
        """How eviction moves each head's output before W_O: sum_i (A_i - A'_i) V_i.

        A' is the softmax over the kept entries and the sink, defined however little attention they
        have. From [kv_heads, entries] bool, no row empty, to [query_heads, value_dim] float32.
        """
        entries, sink = self._logged
        kept = softmax(entries.masked_fill(~keep_mask[:, None], -torch.inf), sink)
        return self.gated(((entries.exp() - kept) @ self.values.float()).flatten(0, 1))

    def gated(self, heads: Tensor) -> Tensor:
        """The heads' outputs [query_heads, value_dim] times the gate, as W_O gets them."""
        return heads if self.gate is None else heads * self.gate.float()

    @property
    def gated_weight(self) -> Tensor:
        """W_O as the token's gate leaves it, [hidden, query_heads * value_dim]."""
        weight = self.output_weight
        return weight if self.gate is None else weight * self.gate.flatten()

    def head_l1(self, keep_masks: Sequence[Tensor]) -> Tensor:
        """Isolated output perturbation ||(A - A')V W_O||_1 of every head (CriticalKV, eq. 5-6).

        A is the full run's attention; A' is A on the kept entries, renormalised. From masks
        [kv_heads, entries] bool, at least one, to [variants, query_heads] float32.
        """
        # One product per variant of how a head moves: no [entries, hidden] tensor.
        weight = self.output_weight.float().view(-1, len(self.query), self.values.shape[2])
        moved = [torch.einsum("hv,dhv->hd", self.moved_heads(mask), weight) for mask in keep_masks]
        return torch.stack([projected.abs().sum(-1) for projected in moved])


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
    which loses no digits where the vectors almost agree. `reference` [..., dim] are the full run's
    vectors, `moved` those minus the evicted run's.
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
    # By layer with attention, [rows, query_heads, value_dim], what W_O gets of each head.
    heads: dict[int, Tensor]
    normed: Tensor  # [rows, hidden_size], the last block's output after the model's final norm

    def first(self, rows: int) -> "MeasuredStep":
        return MeasuredStep(
            self.logits[:rows],
            tuple(hidden[:rows] for hidden in self.hidden),
            {layer: heads[:rows] for layer, heads in self.heads.items()},
            self.normed[:rows],
        )


def measured_step(decoder: Decoder, token: int, reference: int, *, commit: bool) -> MeasuredStep:
    """Feed the full run's first token to every row and record what it does.

    `reference` is the row of the full cache; `commit` makes it every row's own next step too.
    """
    loaded, context = decoder.loaded, decoder.context
    rows = len(context.places)
    context.record_row = reference
    attentions = loaded.attentions.values()
    projections = [cast(nn.Module, attention.o_proj) for attention in attentions]
    vocabulary: nn.Module = loaded.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    with (
        _collected(loaded.layers, outputs=True) as hidden,
        _collected(projections) as outputs,
        _collected([vocabulary]) as normed,
        calls_shown(attentions if loaded.gated else ()) as calls,
    ):
        tokens = torch.full((rows, 1), token, device=loaded.device)
        logits = decoder.feed(tokens, commit=commit)
    context.record_row = None
    shape = (rows, loaded.info.query_heads, -1)
    heads = dict(zip(loaded.attentions, (each.view(shape) for each in outputs), strict=True))
    for (layer, attention), call in zip(loaded.attentions.items(), calls, strict=bool(calls)):
        context.gates[layer] = gate_of(attention, call).view(shape)[reference]
    return MeasuredStep(logits, tuple(hidden), heads, normed[0])


def perturbations(
    step: MeasuredStep,
    decoder: Decoder,
    prefill: Prefill,
    reference: int,
    selections: Sequence[tuple[int, Selection, Selection | None]],
) -> Iterator[tuple[int, Perturbation]]:
    """(row, perturbation) of each variant; EngineError where the step's logits are not finite.

    `reference` is the full cache's row; selections are (row, what it keeps, what its base keeps or
    None).
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
    """Per selection [layers, query_heads]; NaN in layers that are not evictable.

    And where a step reads a part of what is held, or what is held is no token's.
    """
    info = prefill.loaded.info
    shape = (len(selections), info.layers, info.query_heads)
    result = np.full(shape, np.nan, dtype=np.float32)
    for layer in info.evictable_layers if selections else ():
        full = FullLayer.of(decoder, prefill, layer, reference)
        masks = [full.extend(chosen.keep_masks[layer]) for chosen in selections]
        result[:, layer] = full.head_l1(masks).cpu().numpy()
    # The kept set says nothing of such a step.
    unknown = [
        not kept.of_tokens or (kept.held is not None and kept.held > kept.budget)
        for kept in selections
    ]
    result[unknown] = np.nan
    return list(result)


@contextmanager
def _collected(modules: Sequence[nn.Module], *, outputs: bool = False) -> Iterator[list[Tensor]]:
    """Collects what goes into each module, or comes out, for the last token: [rows, width]."""
    collected: list[Tensor] = []

    def hook(_module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        first, *_ = output if outputs and isinstance(output, tuple) else (output,)
        collected.append((first if outputs else inputs[0])[:, -1].float())

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(hook))
        yield collected


# The rounding floor: control rows that keep everything, their attention summed otherwise. Half
# precision rounds what every block hands on, so that the least change of an input grows from layer
# to layer. The controls show how far: exact arithmetic would give them the full cache's outputs. A
# copy of the full row would not do, for it sums in the same order and so rounds alike.

# Where each control parts the prompt. What half precision rounds differs from order to order,
# so it is tried twice; float32 rounds so little that one control tells enough.
CUTS: tuple[float, ...] = (1 / 2, 1 / 3)


class _PartedSlots(SlotCache):
    """Slots of one row that keeps everything, attended to in two parts joined as tails are."""

    def __init__(self, prompt: PromptSlots, capacity: int, window: int | None, cut: float) -> None:
        super().__init__(prompt, 1, capacity, window)
        self._cut = cut

    def _attend_prompt(
        self, queries: Tensor, keys: Tensor, values: Tensor, scaling: Scaling, mask: Tensor | None
    ) -> Part:
        at = int(self._cut * keys.shape[1])
        if mask is not None or not at:  # a query of a sliding layer may see nothing of a part
            return super()._attend_prompt(queries, keys, values, scaling, mask)
        one = partial(queries, keys[:, :at], values[:, :at], scaling)
        other = partial(queries, keys[:, at:], values[:, at:], scaling)
        return join(one, other), torch.logaddexp(one[1], other[1])


def control_rows(prefilled: Prefill, first_place: int, capacity: int) -> list[Rows]:
    """The controls at the end of the prompt; they share the prefill's own tensors."""
    windows, cuts = prefilled.loaded.sliding_windows, CUTS
    if prefilled.loaded.model.dtype == torch.float32:
        cuts = CUTS[:1]
    shared = [whole_slots(each, 1) for each in prefilled.layers]
    return [
        Rows(
            [first_place + number],
            [
                _PartedSlots(prompt, capacity, window, cut)
                if prompt.state is None
                else StateCache(prompt.state, 1)
                for prompt, window in zip(shared, windows, strict=True)
            ],
            prefilled.prompt_len,
        )
        for number, cut in enumerate(cuts)
    ]


def rounding_floor(step: MeasuredStep, reference: int, first: int) -> RoundingFloor:
    """How far the controls are from the full cache, the larger of them in each figure.

    The controls are the rows from `first` on; `reference` is the full cache's.
    """
    moved = [hidden_l1(hidden[first:], hidden[reference]).amax() for hidden in step.hidden]
    layers = [each.to(step.logits.device) for each in moved]  # of a model on several devices
    kl = kl_divergence(step.logits[first:], step.logits[reference]).tolist()
    check_finite(kl)
    return RoundingFloor(layer_hidden_l1=torch.stack(layers).cpu().numpy(), kl=max(kl))
