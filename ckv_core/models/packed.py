"""A CPU model's linear maps, their weights laid out once as oneDNN's matrix product reads them.

PyTorch's own product on the CPU reorders, or strides through, the weights at every call; with few
rows, as in decoding, that is most of its time. torch.compile packs weights with these same
operators, but needs a C++ compiler. They have no public name.
"""

from functools import cache
from typing import cast

import torch
from torch import Tensor, nn

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
        packed = _OPERATORS._reorder_linear_weight(linear.weight)
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias

    @property
    def weight(self) -> Tensor:
        """[out_features, in_features], unpacked anew at every call, bit for bit."""
        return self.packed.to_dense()

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        return _product(inputs, self.packed, self.bias)


def pack_linear_maps(model: nn.Module) -> None:
    """Replace every plain linear map of a float32 CPU model, where this build of PyTorch can.

    Each weight is given back as soon as its packed form exists. A head that shares the
    embedding's weight gets a packed one of its own.
    """
    names = [name for name, part in model.named_modules() if type(part) is nn.Linear]
    for name in names:
        linear = cast(nn.Linear, model.get_submodule(name))
        if _can_pack(linear.weight):
            model.set_submodule(name, PackedLinear(linear))
    if any(isinstance(part, PackedLinear) for part in model.modules()):
        # What was not packed is copied: a view of the weights' file keeps all of it in memory.
        for parameter in model.parameters():
            if parameter.layout == torch.strided:
                parameter.data = parameter.data.clone()


def _can_pack(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and _works()


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
