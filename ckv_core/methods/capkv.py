"""CapKV: entries whose values point where the others do not, weighed by the mean query.

The paper weighs by the dot product of key and mean query, kvpress by 5 times their cosine (`align`,
`tau`, `anchor`). It costs a matrix and triangular solves per query head.
"""

from dataclasses import dataclass
from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.expected_attention import FUTURE, QueryStatistics
from ckv_core.methods.parameters import choice, number
from ckv_core.methods.parts.base import SINKS, Parameters, Scorer
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.views import Chunk, LayerView, Observer, PromptShape

TAU = number("tau", 1.0, (0.0, 100.0), kvpress=5.0).means(
    "CapKV: how much a key's alignment with the mean query weighs, as a factor of the logit "
    "(align=dot) or of the cosine."
)
ALIGN = choice("align", ("dot", "cosine"), kvpress="cosine").means(
    "CapKV: alignment of a key with the mean query. It is their scaled dot product (dot), or "
    "their cosine with a largest weight of 1 (cosine)."
)
ANCHOR = choice("anchor", ("seen", "future"), kvpress="future").means(
    "CapKV: the prompt's mean query (seen), or the same turned to the next `future` positions "
    "(future, kvpress)."
)
_LEAST_RIDGE = 1e-9  # of the mean diagonal: keeps float64 from a singular matrix


@dataclass(frozen=True, slots=True)
class QuerySum:
    """The sum of all queries after RoPE but those of the first `sinks` tokens."""

    sinks: int
    kind: ClassVar[str] = "sum of the queries"

    def size(self, query_heads: int, head_dim: int, prompt_len: int) -> tuple[int, ...]:
        return query_heads, head_dim

    def see(self, statistic: Tensor, chunk: Chunk) -> None:
        statistic += chunk.queries[:, max(self.sinks - chunk.start, 0) :].float().sum(1)

    def work_bytes(self, shape: PromptShape, chunk: int) -> int:
        return 4 * shape.query_heads * chunk * shape.head_dim


class Capacity(Scorer):
    """w u^T (I + sum of w u u^T)^-1 u, with u the value and w = exp(tau * alignment)."""

    parameters = (TAU, ALIGN, ANCHOR, FUTURE, SINKS.but(default=4))
    query_aware = False
    non_negative = True

    def observes(self, parameters: Parameters) -> tuple[Observer, ...]:
        sinks = int(parameters["sinks"])
        return (QueryStatistics(sinks) if parameters["anchor"] == "future" else QuerySum(sinks),)

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        sinks, tau = int(parameters["sinks"]), float(parameters["tau"])
        cosine, entries = parameters["align"] == "cosine", view.keys.shape[1]
        (observer,) = self.observes(parameters)
        gathered = view.observed(observer)  # then the mean query of each query head
        if isinstance(observer, QueryStatistics):
            means, _ = observer.moments(gathered, entries)
            future = (entries, int(parameters["future"]))
            anchors = view.rotary().mean_turn(means[:, None], *future)[:, 0]
        else:
            anchors = gathered / max(entries - sinks, 1)
        anchors = torch.nn.functional.normalize(anchors, dim=-1) if cosine else anchors
        scores = anchors.new_zeros(view.query_heads, entries)
        for head, anchor in enumerate(anchors):
            own = head * view.kv_heads // view.query_heads
            keys = view.keys[own, sinks:].float()
            keys = (
                torch.nn.functional.normalize(keys, dim=-1)
                if cosine
                else keys * view.scaling.factor
            )
            logits = tau * (keys @ anchor)
            scores[head, sinks:] = leverage(logits, view.values[own, sinks:], shifted=cosine)
        return scores

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        angles = 4 * int(parameters["future"]) * shape.head_dim
        rows = 8 * 4 * shape.head_dim + 4 * shape.query_heads
        return angles + shape.prompt_len * rows + 8 * 4 * shape.head_dim**2


def leverage(logits: Tensor, values: Tensor, *, shifted: bool) -> Tensor:
    """Weighted ridge leverage of each value [entries, value_dim]: [entries] float32, from 0 to 1.

    Weights, given as logits, are divided by the largest, and the ridge of 1 with them unless they
    are `shifted`, so that it stays 1 beside weights whose largest is 1: the score is the same, and
    nothing overflows.
    """
    rows, peak = values.double(), logits.max().double()
    weights = (logits - peak).double().exp()
    scaled = rows * weights.sqrt()[:, None]
    matrix = scaled.T @ scaled
    ridge = torch.ones_like(peak) if shifted else (-peak).exp()
    ridge = ridge.maximum(matrix.diagonal().mean() * _LEAST_RIDGE)
    matrix.diagonal().add_(ridge.clamp(max=1e200))
    root = torch.linalg.cholesky(matrix)
    solved: Tensor = torch.linalg.solve_triangular(root, scaled.T, upper=False)
    return solved.square().sum(0).float()


register(
    name="capkv",
    label="CapKV",
    summary="Keeps values that add most to what the others can express; weighs by keys.",
    source="Yang et al. 2026, arXiv:2604.25975",
    scorer=Capacity(),
    press=Press("CapPress", {"tau": "tau", "n_future_positions": "future", "n_sink": "sinks"}),
)
