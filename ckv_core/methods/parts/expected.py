"""What Gaussian queries at future positions would attend to (arXiv:2510.00636).

kvpress computes the softmax in the model's type, this in float32; it divides the logits by the
root of the head size, this scales them as the model does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ckv_core.methods.parameters import Choice, Parameter, integer, number
from ckv_core.methods.parts.base import SINKS, Parameters, Scorer
from ckv_core.methods.parts.query_statistics import QueryStatistics
from ckv_core.methods.parts.views import LayerView, Observer, PromptShape
from ckv_core.runtime.lazy_torch import Tensor, torch

FUTURE = Parameter(
    name="future",
    help="Expected Attention and CapKV: positions after the prompt over which RoPE is averaged.",
    default=512,
    parse=integer("future", 1, 65536),
)
VALUE_SIZE = Parameter(
    name="value_size",
    help="Expected Attention: times the L2 norm of the value; off with CriticalKV.",
    default="on",
    parse=Choice("value_size", "on", "off"),
)
OFFSET = Parameter(
    name="offset",
    help="Expected Attention: added to the attention before the product with the value's norm.",
    default=0.0,
    parse=number("offset", 0.0, 1.0),
)


class ExpectedAttention(Scorer):
    """Softmax of the mean logits of Gaussian queries, times the value's norm; sinks are kept."""

    name = "expected_attention"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        FUTURE,
        VALUE_SIZE,
        OFFSET,
        replace(SINKS, default=4),
    )
    query_aware = False
    non_negative = True

    def observes(self, parameters: Parameters) -> tuple[Observer, ...]:
        return (QueryStatistics(int(parameters["sinks"])),)

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        expected = self.group(self.evidence(view, parameters), view.kv_heads, parameters)
        expected = expected + float(parameters["offset"])
        if parameters["value_size"] == "off":
            return expected
        sizes: Tensor = torch.linalg.vector_norm(view.values, dim=-1, dtype=torch.float32)
        return expected * sizes

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        sinks, entries = int(parameters["sinks"]), view.keys.shape[1]
        rotary, observer = view.rotary(), QueryStatistics(sinks)
        means, covariances = observer.moments(view.observed(observer), entries)
        future = (entries, int(parameters["future"]))
        means = rotary.mean_turn(means[:, None], *future)[:, 0] * view.scaling
        covariances = rotary.mean_turn(covariances, *future)
        covariances = rotary.mean_turn(covariances.mT, *future) * view.scaling**2
        expected = means.new_zeros(view.query_heads, entries)
        for head in range(view.query_heads):
            keys = view.keys[head * view.kv_heads // view.query_heads, sinks:].float()
            spread = ((keys @ covariances[head]) * keys).sum(-1)
            expected[head, sinks:] = (keys @ means[head] + spread / 2).softmax(-1)
        return expected

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        turned = 6 * shape.query_heads * shape.head_dim**2
        angles = 4 * int(parameters["future"]) * shape.head_dim
        return 4 * (turned + angles + shape.prompt_len * (4 * shape.head_dim + shape.query_heads))


class OffsetExpectedAttention(ExpectedAttention):
    """With an offset, as kvpress's registry has it: no head's entries may all count for nothing."""

    name = "expected_attention_offset"
    parameters = tuple(
        replace(k, default=0.01) if k is OFFSET else k for k in ExpectedAttention.parameters
    )
