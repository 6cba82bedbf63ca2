"""Scissorhands' record: at which of the newest queries an entry drew less than the mean attention.

One bit per query in whole numbers of 62 bits, so that a record of 400 queries goes with an entry
as seven numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ckv_core.methods.parameters import Parameter, integer, number
from ckv_core.methods.parts.base import RECENT, Parameters, Scorer
from ckv_core.methods.parts.steps import StepPolicy, StepView
from ckv_core.methods.parts.top_k import keep_first, order
from ckv_core.methods.parts.views import LayerView, PromptShape
from ckv_core.runtime.lazy_torch import Tensor, torch

HISTORY = Parameter(
    name="history",
    help="Scissorhands: newest queries that count.",
    default=400,
    parse=integer("history", 1, 1024),
)
DROP = Parameter(
    name="drop",
    help="Scissorhands: share of the budget that goes at a time while generating.",
    default=0.5,
    parse=number("drop", 0.0, 0.9),
)
_BITS = 62
_WORD = 8  # bytes


def words(history: int) -> int:
    """Numbers of an entry that hold so many queries."""
    return -(-history // _BITS)


def low_rows(view: LayerView, history: int) -> Iterator[Tensor]:
    """Of each KV head [queries, entries] bool, the last queries of the prompt, oldest first.

    True where the mean attention of the head's query heads is below 1 over what the query sees.
    """
    entries, group_size = view.keys.shape[1], view.query_heads // view.kv_heads
    total: Tensor | None = None
    for head, rows in enumerate(view.window_rows(history), start=1):
        total = rows if total is None else total + rows
        if head % group_size == 0:
            places = torch.arange(entries, device=rows.device)
            own = places[entries - len(rows) :, None]  # of each query
            yield (total / group_size < 1 / (own + 1)) & (places <= own)
            total = None


def first_record(view: LayerView, history: int) -> dict[str, Tensor]:
    """Of the prompt's last queries, the very last in place `history - 1`: [kv_heads, entries]."""
    shape, device = view.keys.shape[:2], view.keys.device
    found = [torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(words(history))]
    for head, rows in enumerate(low_rows(view, history)):
        for at, low in enumerate(rows, start=history - len(rows)):
            found[at // _BITS][head] |= low.long() << at % _BITS
    return {f"low {word}": each for word, each in enumerate(found)}


def set_record(record: Mapping[str, Tensor], low: Tensor, at: int) -> dict[str, Tensor]:
    """With a query's [kv_heads, entries] bool in place `at`, instead of what was there."""
    name, bit = f"low {at // _BITS}", at % _BITS
    return {**record, name: (record[name] & ~(1 << bit)) | (low.long() << bit)}


def counted(record: Mapping[str, Tensor]) -> Tensor:
    """At how many of the remembered queries each entry was low, [kv_heads, entries] int64."""
    (first, *others) = (_ones(each) for each in record.values())
    for each in others:
        first += each
    return first


def _ones(word: Tensor) -> Tensor:
    bits = torch.arange(_BITS, device=word.device)
    return ((word[..., None] >> bits) & 1).sum(-1)


class SeldomLow(Scorer):
    """Minus the number of the last queries that gave an entry less than the mean."""

    name = "seldom_low"
    parameters = (HISTORY, replace(RECENT, default=10))

    def queries(self, parameters: Parameters) -> int:
        return int(parameters["history"])

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        rows = low_rows(view, self.queries(parameters))
        return -torch.stack([each.sum(0) for each in rows]).float()

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        rows = min(self.queries(parameters), shape.prompt_len)
        return 4 * 5 * rows * shape.prompt_len


class DropLow(StepPolicy):
    """Goes on recording; above the budget the entries that were low most often are dropped."""

    name = "drop_low"
    needs_equal = True
    parameters = (DROP,)
    reads = ("history", "recent")
    needs_probabilities = True

    def begins_with(self, view: LayerView, parameters: Parameters) -> Mapping[str, Tensor]:
        return first_record(view, int(parameters["history"]))

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        kv_heads, entries = view.positions.shape
        if view.probabilities is None:
            return None
        mean = view.probabilities.view(kv_heads, -1, entries).mean(1)
        at = (view.step - 1) % int(parameters["history"])
        view.carried |= set_record(view.carried, mean < 1 / entries, at)
        budget, recent = int(parameters["budget"]), int(parameters["recent"])
        if entries <= budget:
            return None
        low = counted(view.carried)
        low[:, entries - recent :] = -1
        left = max(budget - int(budget * float(parameters["drop"])), recent, 1)
        return keep_first(order(-low), torch.full((kv_heads,), left))

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        size = words(int(parameters["history"])) * _WORD
        return size * shape.layers * shape.kv_heads * shape.prompt_len
