"""Attention Matching: kept keys get new values and a bias, fitted to what queries saw.

The entries are no tokens. The model repeats the prompt, as for KVzip, and its queries there are the
references. Kept are the keys with the largest root mean square of their attention. A bias of each
key then restores the attention's mass (least squares, within e^-3 and e^3), and values its output.
That is the authors' fast variant; they take more queries and no ridge, which overfits short texts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.kvzip import REPEAT, Reconstruction
from ckv_core.methods.parameters import Budget, integer, number
from ckv_core.methods.parts.base import Parameters, Scorer
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.store import Segment, Store, TensorSegment
from ckv_core.methods.parts.views import (
    Chunk,
    FurtherPass,
    LayerView,
    PromptShape,
    PromptTokens,
)

REFERENCES = integer("references", 1024, (16, 65536)).means(
    "Attention Matching: fits use at most so many queries a query head, evenly from the repetition."
)
RIDGE = number("ridge", 1e-6, (1e-9, 1.0)).means(
    "Attention Matching: keeps fits small, as a share of the largest eigenvalue."
)
_REPEAT = REPEAT.but(kvpress=None)
_QUERIES = 128  # whose attention exists at a time
_FACTS = 3  # beside a reference's query and output: largest logit, log-sum-exp, the layer's cap
_LEAST, _MOST = math.exp(-3), math.exp(3)  # what a key may count as
_STEPS = 2  # of the projected gradient
_FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class References:
    """Queries that repeat the prompt, and what attention to the prompt alone gives each.

    A row is a query times the layer's factor, its output and _FACTS; zeros where it was not read.
    """

    repeat: int  # tokens of a pass
    most: int  # rows of a query head
    shorter_by: ClassVar[str] = "repeat"
    kind: ClassVar[str] = "queries while the prompt is repeated"
    goes_back: ClassVar[bool] = False

    def passes(self, prompt: PromptTokens) -> Sequence[FurtherPass]:
        return Reconstruction(self.repeat, None).passes(prompt)

    def size(self, query_heads: int, head_dim: int, prompt_len: int) -> tuple[int, ...]:
        return query_heads, min(self.most, prompt_len), 2 * head_dim + _FACTS

    def see(self, statistic: Tensor, chunk: Chunk, seen: FurtherPass) -> None:
        rows, part, length = statistic.shape[1], seen.part, seen.prompt_len
        # The tokens of the prompt that have a row, and which of the chunk repeats each.
        tokens = torch.arange(rows, device=statistic.device) * length // rows
        before = len(seen.token_ids) - (part.stop - part.start) + length - chunk.start
        at = tokens - part.start + before
        inside = (tokens >= part.start) & (tokens < part.stop)
        inside &= (at >= 0) & (at < chunk.queries.shape[1])
        keys, values = chunk.keys[:, :length].float(), chunk.values[:, :length].float()
        group_size = len(chunk.queries) // len(keys)
        for head, queries in enumerate(chunk.queries):
            own = queries[at[inside]].float()
            found = [
                _reference(block, keys[head // group_size], values[head // group_size], chunk)
                for block in torch.split(own, _QUERIES)
            ]
            statistic[head, inside] = torch.cat(found)

    def work_bytes(self, shape: PromptShape, chunk: int) -> int:
        entries = shape.prompt_len * (2 * shape.kv_heads * shape.head_dim + 3 * _QUERIES)
        return _FLOAT * (entries + 2 * min(chunk, self.most) * (2 * shape.head_dim + _FACTS))


def _reference(queries: Tensor, keys: Tensor, values: Tensor, chunk: Chunk) -> Tensor:
    """Rows of the statistic for queries [queries, head_dim] of a head of the prompt."""
    scaling = chunk.scaling
    logits = scaling.logits_(queries @ keys.T)
    most, total = logits.amax(-1, keepdim=True), logits.logsumexp(-1, keepdim=True)
    cap = torch.full_like(most, scaling.cap or 0.0)
    output = (logits - total).exp_() @ values
    return torch.cat([queries * scaling.factor, output, most, total, cap], -1)


def _read(seen: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Queries, outputs, largest logits, log-sum-exps and caps of the rows that were read."""
    rows = seen[seen[:, -2] > seen[:, -3]]
    return rows[:, :dim], rows[:, dim:-_FACTS], *torch.split(rows[:, -_FACTS:], 1, -1)


def _logits(queries: Tensor, keys: Tensor, cap: Tensor) -> Tensor:
    """[queries, keys] float32, as the layer has them."""
    logits = queries @ keys.float().T
    return cap * (logits / cap).tanh() if len(cap) and bool(cap[0]) else logits


class RootMeanSquare(Scorer):
    """The root mean square of the references' attention to an entry."""

    parameters = (_REPEAT, REFERENCES)
    query_aware = False
    non_negative = True

    def passes(self, parameters: Parameters) -> tuple[References, ...]:
        return (_references(parameters),)

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        seen, group_size = view.observed(_references(parameters)), view.query_heads // view.kv_heads
        dim, found = view.keys.shape[-1], []
        for head, rows in enumerate(seen):
            queries, _, _, total, cap = _read(rows, dim)
            keys, squares = view.keys[head // group_size], queries.new_zeros(view.keys.shape[1])
            for at in range(0, len(queries), _QUERIES):
                part = slice(at, at + _QUERIES)
                logits = _logits(queries[part], keys, cap[part])
                squares += (logits - total[part]).exp_().square_().sum(0)
            found.append((squares / max(1, len(queries))).sqrt_())
        return torch.stack(found)

    def group(self, evidence: Tensor, kv_heads: int, parameters: Parameters) -> Tensor:
        return evidence.view(kv_heads, -1, evidence.shape[-1]).square().mean(1).sqrt()

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        return _FLOAT * shape.prompt_len * (3 * _QUERIES + 2 * shape.query_heads + shape.head_dim)


def _references(parameters: Parameters) -> References:
    return References(int(parameters[REPEAT.name]), int(parameters[REFERENCES.name]))


@dataclass(frozen=True, slots=True)
class MatchedSegment(TensorSegment):
    """Keys of the prompt with fitted values, and what is added to each key's logits."""

    by_entry = ("keys", "values", "bias")

    bias: Tensor  # [heads, length]

    @property
    def kind(self) -> None:
        return None

    def decoded(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values

    def attend(self, queries: Tensor, scaling: Scaling) -> tuple[Tensor, Tensor]:
        from ckv_core.methods.attention import written_out  # noqa: PLC0415 - it loads torch

        return written_out(queries, self.keys, self.values, scaling, None, self.bias)


class Matched(Store):
    """Kept keys with a bias and values that are fitted to the references."""

    parameters = (_REPEAT, REFERENCES, RIDGE)
    of_tokens = False

    def weights(self, view: LayerView, parameters: Parameters) -> Tensor:
        """The references of the query heads of each KV head, [kv_heads, rows, numbers]."""
        seen = view.observed(_references(parameters))
        return seen.view(view.kv_heads, -1, seen.shape[-1])

    def encode(
        self, keys: Tensor, values: Tensor, parameters: Parameters, weights: Tensor | None = None
    ) -> Segment:
        bias = keys.new_zeros(keys.shape[:2])
        length = keys.shape[1]
        if weights is None or length in (0, parameters["prompt_len"]):
            return MatchedSegment(keys, values, bias)
        ridge, values = float(parameters[RIDGE.name]), torch.empty_like(values)
        for head, own in enumerate(keys):
            bias[head], values[head] = fitted(own, weights[head], ridge)
        return MatchedSegment(keys, values, bias)

    def head_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        return entries * (2 * head_dim + 1) * itemsize

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        rows = min(int(parameters[REFERENCES.name]), shape.prompt_len)
        rows *= shape.query_heads // shape.kv_heads
        copied = rows * shape.kv_heads * (2 * shape.head_dim + _FACTS)
        budget, kept = Budget.parse(str(parameters["budget"])), shape.prompt_len
        if budget.unit != "mib":
            kept = min(kept, budget.resolve(shape.prompt_len, 1))
        return _FLOAT * copied + 2 * _FLOAT * kept * (3 * rows + 3 * kept)


def fitted(keys: Tensor, seen: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Bias [kept] and values [kept, value_dim] of one KV head's kept keys [kept, head_dim].

    `seen`: rows of the statistic, [rows, numbers]. In float64.
    """
    queries, outputs, most, total, cap = _read(seen, keys.shape[-1])
    logits = _logits(queries, keys, cap)
    factors = _mass((logits - most).exp_().double(), (total - most).exp_().double(), ridge)
    bias = factors.log()
    shares = (logits.double() + bias).softmax(-1)
    gram = shares.T @ shares
    return bias, _solved(gram, shares.T @ outputs.double(), ridge * _largest(gram))


def _mass(drawn: Tensor, mass: Tensor, ridge: float) -> Tensor:
    """The factor of each key, [kept], with which `drawn` [rows, kept] sums to `mass` [rows, 1].

    Least squares, cut to the bounds, and a few steps of projected gradient.
    """
    gram, wanted = drawn.T @ drawn, drawn.T @ mass
    largest = _largest(gram)
    factors = _solved(gram, wanted, ridge * largest).clamp_(_LEAST, _MOST)
    for _ in range(_STEPS):
        factors = (factors - (gram @ factors - wanted) / largest).clamp_(_LEAST, _MOST)
    return factors[:, 0]


def _largest(gram: Tensor) -> Tensor:
    """About its largest eigenvalue, by three steps from equal numbers."""
    vector = torch.full_like(gram[0], len(gram) ** -0.5)
    for _ in range(3):
        vector = torch.nn.functional.normalize(gram @ vector, dim=0)
    return vector @ gram @ vector


def _solved(gram: Tensor, wanted: Tensor, ridge: Tensor) -> Tensor:
    """The least squares of these normal equations, and `ridge` times the solution's squares."""
    gram = gram.clone()
    gram.diagonal().add_(ridge)
    return torch.cholesky_solve(wanted, torch.linalg.cholesky(gram))


register(
    name="attention_matching",
    label="Attention Matching",
    summary="Keeps strongly attended keys; a bias and fitted values stand in for the others.",
    source="Zweiger et al. 2026, arXiv:2602.16284",
    scorer=RootMeanSquare(),
    store=Matched(),
)
