"""LagKV: entries that stand out from the tokens after them; it needs no query.

Authors and kvpress keep a share of each partition; here the share makes the total the budget. Where
the budget does not hold sinks and tail, `tail` and `ties` say what is kept.
"""

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import choice, integer
from ckv_core.methods.parts.base import (
    SINKS,
    Candidates,
    Kept,
    Parameters,
    PerEntry,
    Scorer,
    Selector,
)
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.views import LayerView

LAG = integer("lag", 128, (2, 65536)).means(
    "LagKV: tokens of a partition; each is scored against the next one."
)
TAIL = choice("tail", ("inside", "protected")).means(
    "LagKV: if the budget is smaller than the tail, the newest tokens stay (inside), or the run "
    "is refused (protected)."
)
TIES = choice("ties", ("place", "topk"), kvpress="topk").means(
    "LagKV: of equal ranks, sinks, newest tokens and earlier partitions stay (place). With topk, "
    "torch.topk decides and may drop sinks."
)
LAG_SINKS = SINKS.but(default=16, kvpress=4)


def scored_partitions(entries: int, parameters: Parameters) -> tuple[slice, int]:
    """Return the positions that have a full partition after them, and how many partitions."""
    sinks, lag = int(parameters["sinks"]), int(parameters["lag"])
    count = max((entries - sinks) // lag - 1, 0)
    return slice(sinks, sinks + count * lag), count


class Partitions(Selector):
    """First the tail, newest first; then one entry of each partition after another, best first.

    So partitions keep equally many, the earlier ones one more where it does not come out even.
    The same sets follow from kvpress's rule, one top-k over ranks within partitions, with 1 for
    sinks and tail, but for what is equal there: `ties`. Without a partition its newest come first.
    """

    needs_entries = True
    reads = ("lag", "sinks", "ties")
    work = PerEntry(kv_heads=12)

    def keep(self, candidates: Candidates, layers: slice, head_budgets: Tensor) -> Kept:
        order = candidates.first()[layers]
        prompt_len = candidates.view(0).keys.shape[1]
        sinks, lag = (int(candidates.parameters[key]) for key in ("sinks", "lag"))
        scored, count = scored_partitions(prompt_len, candidates.parameters)
        position = torch.arange(prompt_len, device=order.device)[candidates.columns]
        inner = slice(*(int((position < edge).sum()) for edge in (scored.start, scored.stop)))
        length = inner.stop - inner.start
        places = torch.arange(candidates.entries, device=order.device).expand(order.shape)
        turn = torch.empty_like(places).scatter(-1, order.long(), places)  # right for the tail
        beyond = position < sinks if not count else torch.ones_like(position, dtype=torch.bool)
        worth = torch.where(beyond, 1.0, (position - sinks) / (prompt_len - sinks)).repeat(
            *order.shape[:2], 1
        )
        if length:
            # Of which some entries may be protected: partitions are not all of one size then.
            partition = (position[inner] - sinks) // lag
            sizes = partition.bincount(minlength=count)
            in_partition = places[..., :length] - (sizes.cumsum(0) - sizes)[partition]
            by_turn = (partition * candidates.entries + turn[..., inner]).argsort(-1)
            rank = torch.empty_like(in_partition).scatter(-1, by_turn, in_partition)
            after_tail = candidates.entries - length
            turn[..., inner] = after_tail + (rank * count + partition).argsort(-1).argsort(-1)
            worth[..., inner] = 1 - (rank + 1) / sizes[partition]
        if candidates.parameters["ties"] == "topk":
            return Kept(_by_topk(worth, head_budgets))
        return Kept(turn < head_budgets[..., None].to(turn.device))


def _by_topk(worth: Tensor, head_budgets: Tensor) -> Tensor:
    """Mark what torch.topk takes of each head's row, [layers, kv_heads, entries] bool."""
    kept = torch.zeros_like(worth, dtype=torch.bool)
    for rows, masks, budgets in zip(worth, kept, head_budgets.tolist(), strict=True):
        for row, mask, budget in zip(rows, masks, budgets, strict=True):
            mask[row.topk(budget).indices] = True
    return kept


class LagRelative(Scorer):
    """Scores say how unevenly channels lie in the next partition's ranges; the tail comes first."""

    parameters = (LAG, LAG_SINKS, TAIL, TIES)
    work = PerEntry(head_dim=8)
    query_aware = False
    across_heads = False
    non_negative = True

    def protects(self, parameters: Parameters) -> dict[str, slice]:
        return {} if parameters["ties"] == "topk" else super().protects(parameters)

    def refuses(self, budget: int, prompt_len: int, parameters: Parameters) -> str:
        part, _ = scored_partitions(prompt_len, parameters)
        least = prompt_len - (part.stop - part.start)
        if parameters["tail"] == "inside" or budget >= least:
            return ""
        return (
            f"sinks and tail are {least:,} of the prompt's {prompt_len:,} tokens, and the budget "
            f"is {budget:,}; raise it, lower 'lag', or take tail=inside."
        )

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        kv_heads, entries = view.keys.shape[:2]
        part, count = scored_partitions(entries, parameters)
        newest = torch.arange(2, entries + 2, dtype=torch.float32, device=view.keys.device)
        scores = newest.repeat(kv_heads, 1)  # of the scored entries none is above 2
        for head in range(kv_heads if count else 0):
            scores[head, part] = 0
            for states in (view.keys[head], view.values[head]):
                cut = states[part.start : part.stop + int(parameters["lag"])].float()
                cut = cut.reshape(count + 1, -1, states.shape[-1])
                low, high = cut[1:].amin(1, keepdim=True), cut[1:].amax(1, keepdim=True)
                # A channel that does not vary there counts as it is.
                spread = (cut[:-1] - low) / torch.where(high > low, high - low, 1)
                scores[head, part] += spread.std(-1).softmax(-1).flatten()
        return scores


register(
    name="lagkv",
    label="LagKV",
    summary="Keeps what stands out from the next partition of the prompt, and the last tokens.",
    source="Liang et al. 2025, arXiv:2504.04704",
    scorer=LagRelative(),
    selector=Partitions(),
    press=Press("LagKVPress", {"n_sink": "sinks", "lag_size": "lag"}),
)
