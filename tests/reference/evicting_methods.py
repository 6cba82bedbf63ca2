"""StreamingLLM, TOVA, H2O and Scissorhands as their papers say, with lists, at every step."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tests.reference.forward import Held, LiteralPolicy
from tests.reference.scores import group_reduced, pooled
from tests.reference.selection import top_k

# From the prompt's attention [query_heads, prompt, prompt] of one layer and its number of KV
# heads: what each head keeps.
Beginning = Callable[[int, Tensor, int], Held]


def tova(budget: int) -> tuple[Beginning, LiteralPolicy]:
    """The newest query's attention, mean over all heads of the layer."""

    def best(positions: list[int], attention: Tensor) -> list[int]:
        worth = {i: sum(float(head[i]) for head in attention) for i in positions}
        return sorted(sorted(positions, key=lambda i: (-worth[i], i))[:budget])

    def begin(_layer: int, attention: Tensor, kv_heads: int) -> Held:
        newest = attention[:, -1]
        return [best(list(range(newest.shape[1])), newest)] * kv_heads

    def policy(_step: int, _layer: int, held: Held, attention: Tensor) -> Held:
        assert all(row == held[0] for row in held), "one set for the whole layer"
        return [best(held[0], attention)] * len(held)

    return begin, policy


def streaming_llm(budget: int, sinks: int = 4) -> tuple[Beginning, LiteralPolicy]:
    """The first tokens and the newest ones, at their places in the text."""

    def rolled(positions: list[int]) -> list[int]:
        excess = max(len(positions) - budget, 0)
        return positions[:sinks] + positions[sinks + excess :]

    def begin(_layer: int, attention: Tensor, kv_heads: int) -> Held:
        return [rolled(list(range(attention.shape[1])))] * kv_heads

    def policy(_step: int, _layer: int, held: Held, _attention: Tensor) -> Held:
        return [rolled(row) for row in held]

    return begin, policy


def h2o(budget: int) -> tuple[Beginning, LiteralPolicy]:
    """Attention added up over all queries; the newest half of the budget is always kept."""
    totals: dict[tuple[int, int, int], float] = {}

    def best(layer: int, head: int, positions: list[int]) -> list[int]:
        if len(positions) <= budget:
            return positions
        cut = len(positions) - budget // 2
        older, recent = positions[:cut], positions[cut:]
        older = sorted(older, key=lambda i: (-totals[layer, head, i], i))
        return sorted(older[: budget - len(recent)]) + recent

    def add(layer: int, head: int, position: int, attention: list[float]) -> None:
        key = layer, head, position
        totals[key] = totals.get(key, 0.0) + sum(attention) / len(attention)

    def begin(layer: int, attention: Tensor, kv_heads: int) -> Held:
        group, length = len(attention) // kv_heads, attention.shape[1]
        for head in range(kv_heads):
            own = attention[head * group : (head + 1) * group]
            for i in range(length):
                add(layer, head, i, own[:, :, i].sum(1).tolist())
        return [best(layer, head, list(range(length))) for head in range(kv_heads)]

    def policy(_step: int, layer: int, held: Held, attention: Tensor) -> Held:
        group = len(attention) // len(held)
        for head, row in enumerate(held):
            for i in row:
                add(layer, head, i, attention[head * group : (head + 1) * group, i].tolist())
        return [best(layer, head, row) for head, row in enumerate(held)]

    return begin, policy


def scissorhands(
    budget: int, history: int = 70, recent: int = 4, drop: float = 0.3
) -> tuple[Beginning, LiteralPolicy]:
    """What the last queries gave less than the mean of what they saw, most often, goes first."""
    seen: dict[tuple[int, int], list[dict[int, bool]]] = {}

    def look(layer: int, head: int, positions: list[int], attention: Tensor) -> None:
        means = {i: float(attention[:, i].double().mean()) for i in positions}
        record = seen.setdefault((layer, head), [])
        record.append({i: mean < 1 / len(positions) for i, mean in means.items()})
        del record[:-history]

    def best(layer: int, head: int, positions: list[int], count: int) -> list[int]:
        older, newest = positions[: len(positions) - recent], positions[-recent:]
        low = {i: sum(query.get(i, False) for query in seen[layer, head]) for i in older}
        return sorted(sorted(older, key=lambda i: (low[i], i))[: count - recent]) + newest

    def begin(layer: int, attention: Tensor, kv_heads: int) -> Held:
        group, length = len(attention) // kv_heads, attention.shape[1]
        kept = []
        for head in range(kv_heads):
            own = attention[head * group : (head + 1) * group]
            for t in range(length):
                look(layer, head, list(range(t + 1)), own[:, t])
            kept.append(best(layer, head, list(range(length)), budget))
        return kept

    def policy(_step: int, layer: int, held: Held, attention: Tensor) -> Held:
        group = len(attention) // len(held)
        kept = []
        for head, row in enumerate(held):
            look(layer, head, row, attention[head * group : (head + 1) * group])
            left = budget - int(budget * drop)
            kept.append(row if len(row) <= budget else best(layer, head, row, left))
        return kept

    return begin, policy


def compaction(every: int, to: int, params: dict[str, Any]) -> LiteralPolicy:
    """After every so many steps each head keeps `to` generated entries: SnapKV among them."""
    rows: dict[int, list[Tensor]] = {}
    first: list[int] = []

    def policy(step: int, layer: int, held: Held, attention: Tensor) -> Held:
        if step == 1:
            first.append(held[0][-1])
        rows.setdefault(layer, []).append(attention)
        if step % every:
            return held
        window, group_size = params["window"], len(attention) // len(held)
        kept = []
        for head, positions in enumerate(held):
            generated = [i for i in positions if i >= first[0]]
            queries = range(head * group_size, (head + 1) * group_size)
            columns = generated[: len(generated) - window]
            means = [_window_mean(rows[layer][-window:], q, generated, columns) for q in queries]
            smooth = [pooled(mean, params["pool"], params["kernel"]) for mean in means]
            (score,) = group_reduced(smooth, group_size, params["group"])
            best = {columns[at] for at in top_k(score, to - window)}
            last = set(generated[len(columns) :])
            kept.append([i for i in positions if i < first[0] or i in best | last])
        return kept

    return policy


def _window_mean(
    rows: list[Tensor], head: int, generated: list[int], columns: list[int]
) -> list[float]:
    """Attention among the generated entries alone, mean over the window's queries."""
    sums = [0.0] * len(columns)
    for row in rows:
        seen = [float(row[head, i]) if i < row.shape[1] else 0.0 for i in generated]
        for at in range(len(columns)):
            sums[at] += seen[at] / sum(seen)
    return [total / len(rows) for total in sums]
