"""Parts of a model replaced by parts that do the same with fewer operators.

In decoding, a few rows cost less to compute than to dispatch; in reading a prompt, every tensor
more is memory to walk through. Each part is tried beside the one it replaces, on random numbers, so
that no architecture needs a name here: what computes something else stays as it is.

On a CPU, weights are then laid out once as oneDNN's matrix product reads them. PyTorch's own
product reorders, or strides through, the weights at every call; with few rows, as in decoding, that
is most of its time. torch.compile packs weights with these same operators, but needs a C++
compiler. They have no public name.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cache
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from ckv_core.base.devices import may_run_triton
from ckv_core.errors import is_out_of_memory
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.models.attention import AttentionContext
from ckv_core.models.linear import Carried

_LOG = logging.getLogger(__name__)
_SILU = (nn.SiLU, SiLUActivation)
_MAPS = ("q_proj", "k_proj", "v_proj")
_NORMS = ("q_norm", "k_norm")  # of each head, before RoPE
_GATED = ("gate_proj", "up_proj")
# Of the largest output. Float32 on the CPU gives the same bits; half precision rounds elsewhere.
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}

# What a part gives for some input, to be compared.
Trial = Callable[[nn.Module], list[Tensor]]
_Call = tuple[dict[str, Any], Scaling]  # an attention module's keywords, and the scaling it gave


class FusedAttention(nn.Module):
    """Queries, keys and values in one product, RoPE on queries and keys together."""

    sign: Tensor

    def __init__(self, attention: Any, scaling: Scaling) -> None:
        super().__init__()
        self.layer_idx, self.head_dim = int(attention.layer_idx), int(attention.head_dim)
        self.scaling = scaling
        maps = [getattr(attention, name) for name in _MAPS]
        self.sizes = [part.out_features // self.head_dim for part in maps]
        self.qkv_proj, self.o_proj = _merged(maps), attention.o_proj
        self.q_norm, self.k_norm = (getattr(attention, name, None) for name in _NORMS)
        sign = self.qkv_proj.weight.new_ones(self.head_dim)
        sign[: self.head_dim // 2] = -1
        self.register_buffer("sign", sign, persistent=False)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        ckv_context: AttentionContext,
        **_others: object,
    ) -> tuple[Tensor, None]:
        """Transformers calls it so: [rows, tokens, hidden] to the same, and no weights."""
        query_heads, kv_heads, _ = self.sizes
        heads = self.qkv_proj(hidden_states).unflatten(-1, (-1, self.head_dim))
        turning, values = heads.split([query_heads + kv_heads, kv_heads], dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = turning.split([query_heads, kv_heads], dim=2)
            turning = torch.cat([self.q_norm(queries), self.k_norm(keys)], dim=2)
        cos, sin = (each.unsqueeze(2) for each in position_embeddings)
        if (kernels := _kernels(turning)) is not None:
            turned = kernels.turned(turning, *position_embeddings)
        else:
            # Each half times the other's sine; its sign stands for the half that RoPE negates.
            across = turning.roll(self.head_dim // 2, -1).mul_(sin * self.sign)
            turned = (turning * cos).add_(across)
        queries, keys = turned.split([query_heads, kv_heads], dim=2)
        output = ckv_context.attend(
            self.layer_idx,
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            self.scaling,
        )
        return self.o_proj(output.transpose(1, 2).flatten(2)), None


class FusedMlp(nn.Module):
    """Two maps, one of which gates the other, in one product; the gating in place."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_up_proj = _merged([getattr(mlp, name) for name in _GATED])
        self.down_proj, self.act_fn = mlp.down_proj, mlp.act_fn

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., hidden] to the same."""
        pairs = self.gate_up_proj(inputs)
        kernels = _kernels(pairs) if isinstance(self.act_fn, _SILU) else None
        if kernels is not None:
            return cast(Tensor, self.down_proj(kernels.gated(pairs)))
        gate, up = pairs.chunk(2, dim=-1)
        return cast(Tensor, self.down_proj(self.act_fn(gate).mul_(up)))


class FusedNorm(nn.RMSNorm):
    """RMSNorm of the last dimension, with one rounding at its end."""

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., width] to the same."""
        kernels = _kernels(inputs)
        if kernels is None or inputs.dtype != self.weight.dtype:
            return super().forward(inputs)
        return cast(Tensor, kernels.normed(inputs, self.weight, self.eps))


def _kernels(states: Tensor) -> ModuleType | None:
    """Kernels for such states; None where PyTorch computes them, as what has a gradient."""
    return None if states.requires_grad else _kernels_of(states.device)


@cache
def _kernels_of(device: torch.device) -> ModuleType | None:
    """`models.kernels` where Triton compiles it and it computes what PyTorch does, else None."""
    if not may_run_triton(device):
        return None
    states, cos, sin = (torch.randn(2, 3, n, 24, device=device) for n in (5, 1, 1))
    try:
        from ckv_core.models import kernels  # noqa: PLC0415 - with CUDA alone

        turned = kernels.turned(states, cos[:, :, 0], sin[:, :, 0])
        gated = kernels.gated(states)
        normed = kernels.normed(states, cos[0, 0, 0], 1e-5)
    except Exception as error:  # no Triton, no compiler: of many kinds, and nothing is lost
        if is_out_of_memory(error):
            raise
        _LOG.warning(
            "RoPE, gates and norms are left to PyTorch, as Triton cannot do them: %s", error
        )
        return None
    (one, other), (gate, up) = states.chunk(2, -1), states.chunk(2, -1)
    pairs = (
        (turned, states * cos + torch.cat([-other, one], -1) * sin),
        (gated, nn.functional.silu(gate) * up),
        (normed, nn.functional.rms_norm(states, (24,), cos[0, 0, 0], 1e-5)),
    )
    same = all(torch.allclose(*pair, rtol=1e-4, atol=1e-4) for pair in pairs)
    return kernels if same else None


@torch.no_grad()
def fuse(model: PreTrainedModel, attentions: Iterable[nn.Module]) -> None:
    """Replace in place what can be replaced, without gradients.

    A part's old weights are given back before the next part is looked at; `attentions` are the
    modules that call our attention function.
    """
    calls = _calls(model, attentions)
    names = [name for name, _ in model.named_modules()]
    for name in reversed(names):  # what lies inside a part comes before it
        part = model.get_submodule(name)
        if any(hasattr(inner, "_hf_hook") for inner in part.modules()):
            continue  # it fetches its inputs from another device
        found = _candidate(part, calls.get(name))
        if found is not None and _same(part, *found):
            model.set_submodule(name, found[0])
        del part, found


def _candidate(part: Any, call: _Call | None) -> tuple[nn.Module, Trial] | None:
    """Returns what may take a part's place, and a trial for both; None where nothing may."""
    if call and _are_linear(part, _MAPS) and hasattr(part, "head_dim"):
        return FusedAttention(part, call[1]), lambda attention: _attended(attention, call[0])
    if _are_linear(part, _GATED) and {"act_fn", "down_proj"} <= dict(part.named_children()).keys():
        return FusedMlp(part), _on_random(part.gate_proj.weight)
    eps = getattr(part, "variance_epsilon", getattr(part, "eps", None))
    if [name for name, _ in part.named_parameters()] == ["weight"] and isinstance(eps, float):
        made = FusedNorm(part.weight.shape, eps=eps, device="meta")
        made.weight = part.weight
        return made, _on_random(part.weight)
    return None


def _are_linear(part: nn.Module, names: Sequence[str]) -> bool:
    """Whether it has these maps, none of another kind and all with a bias or all without."""
    maps = [getattr(part, name, None) for name in names]
    if any(type(each) is not nn.Linear for each in maps):
        return False
    return len({cast(nn.Linear, each).bias is None for each in maps}) == 1


def _calls(model: PreTrainedModel, attentions: Iterable[nn.Module]) -> dict[str, _Call]:
    """By name, the calls of each attention module that has all it needs by keyword."""
    names = {part: name for name, part in model.named_modules()}
    found: dict[str, _Call] = {}
    recorder = Recorder()

    def hook(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _out: object) -> None:
        if not args and {"hidden_states", "position_embeddings"} <= kwargs.keys():
            found[names[part]] = kwargs, recorder.scalings[-1]

    device = next(model.get_input_embeddings().parameters()).device
    with ExitStack() as hooks:
        for part in attentions:
            hooks.enter_context(part.register_forward_hook(hook, with_kwargs=True))
        ids = torch.arange(3, device=device)[None]
        model(input_ids=ids, use_cache=False, ckv_context=recorder)
    return found


class Recorder(Carried):
    """Remembers each layer's queries, keys, values, scaling, and the ramp that it answered.

    No norm or permutation after it would leave a ramp as it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[int, list[Tensor]]] = []
        self.scalings: list[Scaling] = []
        self.outputs: list[Tensor] = []

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: Scaling
    ) -> Tensor:
        self.scalings.append(scaling)
        self.given.append((layer, [query, key, value]))
        # By the scaling, so that another one gets another answer.
        most = scaling.factor * (scaling.cap or 1)
        ramp = torch.linspace(-most, most, query.numel(), device=query.device)
        self.outputs.append(ramp.reshape(query.shape).to(query.dtype))
        return self.outputs[-1]


def _attended(attention: nn.Module, keywords: dict[str, Any]) -> list[Tensor]:
    """Queries, keys, values and output for random states and any angle."""
    recorder, states = Recorder(), keywords["hidden_states"]
    cos_sin = tuple(_random(each) for each in keywords["position_embeddings"])
    given = {"hidden_states": _random(states), "position_embeddings": cos_sin}
    output, _ = attention(**(keywords | given | {"ckv_context": recorder}))
    ((_, inputs),) = recorder.given
    return [*inputs, output]


def _on_random(weight: Tensor) -> Trial:
    """A trial on random numbers for a part whose first weight is [..., inputs]."""
    inputs = _random(weight.new_empty(2, 3, weight.shape[-1]))
    return lambda part: [part(inputs)]


def _random(like: Tensor) -> Tensor:
    """Returns equal numbers at every call, on every device; no other random number is moved."""
    generator = torch.Generator().manual_seed(like.numel())
    return torch.randn(like.shape, generator=generator).to(like)


def _same(part: nn.Module, made: nn.Module, trial: Trial) -> bool:
    try:
        pairs = list(zip(trial(part), trial(made), strict=True))
    except (RuntimeError, TypeError, ValueError):
        return False
    return all(
        one.shape == other.shape
        and bool((one - other).abs().max() <= _TOLERANCE[one.dtype] * one.abs().max())
        for one, other in pairs
    )


def _merged(maps: Sequence[nn.Linear]) -> nn.Linear:
    """One map with the outputs of all, one after another."""
    has_bias = maps[0].bias is not None
    with torch.device("meta"):
        made = nn.Linear(maps[0].in_features, sum(part.out_features for part in maps), has_bias)
    made.weight = _frozen(torch.cat([part.weight for part in maps]))
    if has_bias:
        made.bias = _frozen(torch.cat([part.bias for part in maps]))
    return made


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


_OPERATORS = torch.ops.mkldnn


class PackedLinear(nn.Module):
    """Does what an nn.Linear does; the weight exists in the packed layout only.

    Attributes:
        packed: the weight, opaque to everything but its product.
        bias: [out_features] or None.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = _frozen(_OPERATORS._reorder_linear_weight(linear.weight))
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        """[out_features, in_features], unpacked again at every call, bit for bit."""
        return self.packed.to_dense()

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        if inputs.requires_grad:
            return cast(Tensor, _Product.apply(inputs, self))  # type: ignore[no-untyped-call]
        return _product(inputs, self.packed, self.bias)


class _Product(torch.autograd.Function):
    """The packed product with a gradient, which the operator itself has none of."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, linear: PackedLinear) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        ctx.linear = linear
        return _product(inputs, linear.packed, linear.bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient of outputs to that of inputs [..., in_features]; the weight has none."""
        return gradient @ ctx.linear.weight, None


def pack_linear_maps(model: nn.Module) -> None:
    """Replace every plain linear map of a float32 CPU model, where this build of PyTorch can.

    Each weight is given back as soon as its packed form exists. A head that shares the
    embedding's weight gets a packed one of its own.
    """
    names = [name for name, part in model.named_modules() if type(part) is nn.Linear]
    for name in names:
        linear = cast(nn.Linear, model.get_submodule(name))
        weight = linear.weight
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and _works():
            model.set_submodule(name, PackedLinear(linear))
    if any(isinstance(part, PackedLinear) for part in model.modules()):
        # What was not packed is copied: a view of the weights' file keeps all of it in memory.
        for parameter in model.parameters():
            if parameter.layout == torch.strided:
                parameter.data = parameter.data.clone()


def _product(inputs: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = _OPERATORS._linear_pointwise(inputs, packed, bias, "none", [], "")
    return result


@cache
def _works() -> bool:
    """Whether the operators exist here and do what they should; nobody has promised that."""
    weight, inputs = torch.linspace(-1, 1, 35).view(7, 5), torch.linspace(-2, 2, 15).view(3, 5)
    bias = torch.arange(7.0)
    try:
        packed = _OPERATORS._reorder_linear_weight(weight)
        product, unpacked = _product(inputs, packed, bias), packed.to_dense()
    except (AttributeError, RuntimeError):  # NotImplementedError is a RuntimeError
        return False
    expected = nn.functional.linear(inputs, weight, bias)
    return torch.equal(unpacked, weight) and torch.allclose(product, expected, atol=1e-5)
