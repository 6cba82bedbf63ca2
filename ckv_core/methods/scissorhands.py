"""Scissorhands: what was attended to less than the mean, most often of late, goes first.

It counts over the last 400 queries and drops half of the budget at a time (`drop`). A question that
is read after the context is not counted.
"""

from collections.abc import Iterator, Mapping

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import integer, number
from ckv_core.methods.parts.base import RECENT, Parameters, Scorer
from ckv_core.methods.parts.steps import StepPolicy, StepView, most_each_step
from ckv_core.methods.parts.top_k import keep_first, order
from ckv_core.methods.parts.views import LayerView, PromptShape

HISTORY = integer("history", 400, (1, 1024)).means("Scissorhands: newest queries that count.")
DROP = number("drop", 0.5, (0.0, 0.9)).means(
    "Scissorhands: share of the budget that goes at a time while generating."
)
_BITS = 62
_WORD = 8  # bytes


def words(history: int) -> int:
    """Numbers of an entry that hold so many queries."""
    return -(-history // _BITS)


def low_rows(view: LayerView, history: int) -> Iterator[Tensor]:
    """Yield each KV head's low entries, [queries, entries] bool, for the prompt's last queries.

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
    """Record the prompt's last queries, the very last at `history - 1`: [kv_heads, entries]."""
    shape, device = view.keys.shape[:2], view.keys.device
    record = [torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(words(history))]
    for head, rows in enumerate(low_rows(view, history)):
        for at, low in enumerate(rows, start=history - len(rows)):
            record[at // _BITS][head] |= low.long() << at % _BITS
    return {f"low {word}": bits for word, bits in enumerate(record)}


def counted(record: Mapping[str, Tensor]) -> Tensor:
    """At how many of the remembered queries each entry was low, [kv_heads, entries] int64."""
    first, *others = record.values()
    bits = torch.arange(_BITS, device=first.device)
    total = ((first[..., None] >> bits) & 1).sum(-1)
    for word in others:
        total += ((word[..., None] >> bits) & 1).sum(-1)
    return total


class SeldomLow(Scorer):
    """Minus the number of the last queries that gave an entry less than the mean."""

    parameters = (HISTORY, RECENT.but(default=10))

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

    needs_equal = True
    parameters = (DROP,)
    reads = ("history", "recent")
    needs_probabilities = True

    def begins_with(self, view: LayerView, parameters: Parameters) -> Mapping[str, Tensor]:
        return first_record(view, int(parameters["history"]))

    def most(self, kept: int, generated: int, parameters: Parameters) -> int:
        return most_each_step(kept, generated, parameters)

    def after_step(self, view: StepView, parameters: Parameters) -> Tensor | None:
        kv_heads, entries = view.positions.shape
        if view.probabilities is None:
            return None
        mean = view.probabilities.view(kv_heads, -1, entries).mean(1)
        at = (view.step - 1) % int(parameters["history"])
        name, bit = f"low {at // _BITS}", at % _BITS
        low = (mean < 1 / entries).long() << bit  # instead of what was there
        view.carried[name] = (view.carried[name] & ~(1 << bit)) | low
        budget, recent = int(parameters["budget"]), int(parameters["recent"])
        if entries <= budget:
            return None
        times = counted(view.carried)
        times[:, entries - recent :] = -1
        left = max(budget - int(budget * float(parameters["drop"])), recent, 1)
        return keep_first(order(-times), torch.full((kv_heads,), left))

    def work_bytes(self, shape: PromptShape, parameters: Parameters) -> int:
        size = words(int(parameters["history"])) * _WORD
        return size * shape.layers * shape.kv_heads * shape.prompt_len


register(
    name="scissorhands",
    label="Scissorhands",
    summary="Drops what the newest queries ignored most often, half of the budget at a time.",
    source="Liu et al. 2023, arXiv:2305.17118",
    scorer=SeldomLow(),
    policy=DropLow(),
)
