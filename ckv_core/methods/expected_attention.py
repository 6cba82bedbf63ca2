"""Expected Attention, with equal budgets and, as kvpress's registry has it, with AdaKV's.

kvpress computes the softmax in the model's type and divides logits by the root of the head size.
Here it is float32 and the model's own scale.
"""

from dataclasses import dataclass
from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import Parameter, choice, integer, number
from ckv_core.methods.parts.base import SINKS, Parameters, Scorer
from ckv_core.methods.parts.press import EXPECTED_ATTENTION, adaptive
from ckv_core.methods.parts.rules import ADAPTIVE
from ckv_core.methods.parts.views import Chunk, LayerView, Observer, PromptShape


@dataclass(frozen=True, slots=True)
class QueryStatistics:
    """Sums over all queries but those of the first `sinks` tokens, per query head.

    Sums of products of deviations, then the mean. Chunks are joined by their means (Chan et al.
    1979), so that nothing cancels.
    """

    sinks: int
    kind: ClassVar[str] = "queries before RoPE"

    def size(self, query_heads: int, head_dim: int, prompt_len: int) -> tuple[int, ...]:
        return query_heads, head_dim + 1, head_dim

    def see(self, statistic: Tensor, chunk: Chunk) -> None:
        seen = max(chunk.start - self.sinks, 0)
        queries = chunk.queries[:, max(self.sinks - chunk.start, 0) :]
        new, rotary = queries.shape[1], chunk.rotary()
        start = max(chunk.start, self.sinks)
        for head in range(len(queries) if new else 0):
            plain = rotary.undo(queries[head : head + 1].float(), start)[0]
            mean = plain.mean(0)
            moved, plain = mean - statistic[head, -1], plain - mean
            statistic[head, :-1] += plain.T @ plain
            statistic[head, :-1] += torch.outer(moved, moved) * (seen * new / (seen + new))
            statistic[head, -1] += moved * (new / (seen + new))

    def moments(self, statistic: Tensor, prompt_len: int) -> tuple[Tensor, Tensor]:
        """[query_heads, head_dim] means and [query_heads, head_dim, head_dim] covariances."""
        return statistic[:, -1], statistic[:, :-1] / max(prompt_len - self.sinks, 1)

    def work_bytes(self, shape: PromptShape, chunk: int) -> int:
        return 4 * (10 * chunk * shape.head_dim + 3 * shape.head_dim**2)


FUTURE = integer("future", 512, (1, 65536)).means(
    "Expected Attention and CapKV: positions after the prompt over which RoPE is averaged."
)
VALUE_SIZE = choice("value_size", ("on", "off")).means(
    "Expected Attention: multiply the score by the value's L2 norm; off with CriticalKV."
)
OFFSET = number("offset", 0.0, (0.0, 1.0)).means(
    "Expected Attention: added to the attention before the product with the value's norm."
)


class ExpectedAttention(Scorer):
    """Softmax of the mean logits of Gaussian queries, times the value's norm; sinks are kept."""

    parameters: ClassVar[tuple[Parameter, ...]] = (
        FUTURE,
        VALUE_SIZE,
        OFFSET,
        SINKS.but(default=4),
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
        means = rotary.mean_turn(means[:, None], *future)[:, 0] * view.scaling.factor
        covariances = rotary.mean_turn(covariances, *future)
        covariances = rotary.mean_turn(covariances.mT, *future) * view.scaling.factor**2
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
        OFFSET.but(default=0.01) if k is OFFSET else k for k in ExpectedAttention.parameters
    )


register(
    name="expected_attention",
    label="Expected Attention",
    summary="Keeps what queries like the prompt's would attend to in the next `future` tokens.",
    source="Devoto et al. 2025, arXiv:2510.00636",
    scorer=ExpectedAttention(),
    press=EXPECTED_ATTENTION,
)
register(
    name="ada_expected_attention",
    label="AdaKV-Expected Attention",
    summary="Expected Attention's scores; the heads of a layer share its budget as in AdaKV.",
    source="Devoto et al. 2025, arXiv:2510.00636",
    scorer=OffsetExpectedAttention(),
    budget_rule=ADAPTIVE,
    press=adaptive(EXPECTED_ATTENTION),
)
