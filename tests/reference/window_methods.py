"""CAKE, DefensiveKV, ChunkKV, LaProx, DropKV, CAOTE and LAVa from a window's attention.

`rows` is [query_heads][window][entries], each row a softmax over all entries.
"""

import math

import numpy as np

from tests.reference.scores import Row, group_reduced, pooled


def past_of(rows: list[list[Row]]) -> np.ndarray:
    """Without the window's own columns, [query_heads, window, past] float64."""
    return np.array(rows)[..., : len(rows[0][0]) - len(rows[0])]


def cake_scores(rows: list[list[Row]], group_size: int, gamma: float, kernel: int) -> list[Row]:
    """Method sheet 2.14: mean + gamma var over the window, average pooled, group mean."""
    per_head = []
    for head in past_of(rows):
        spread = head.var(0, ddof=1) if len(head) > 1 else 0.0
        per_head.append(pooled((head.mean(0) + gamma * spread).tolist(), "avg", kernel))
    return group_reduced(per_head, group_size, "mean")


def cake_preferences(layers: list[list[list[Row]]], tau1: float, tau2: float) -> list[float]:
    """P of each layer over the sum of all: dispersion^(1/tau1) x variance^(1/tau2)."""
    found = []
    for rows in map(past_of, layers):
        dispersion = -(rows * np.log(rows + 1e-10)).sum()
        variance = rows.var(1, ddof=1).sum()
        found.append(float(dispersion ** (1 / tau1) * variance ** (1 / tau2)))
    return [each / sum(found) for each in found]


def worst_case(rows: list[list[Row]], norms: list[Row], kv_heads: int, kernel: int) -> list[Row]:
    """Method sheet 2.15: R = max(M, mean M) x share of the value norm."""
    window, past = len(rows[0]), len(rows[0][0]) - len(rows[0])
    group_size = len(rows) // kv_heads
    mean_norms = group_reduced(norms, group_size, "mean")
    found = []
    for head in range(kv_heads):
        largest = [0.0] * past
        for member in rows[head * group_size : (head + 1) * group_size]:
            for query in member:
                smoothed = pooled(query[:past], "avg", kernel)
                factor = sum(query[:past]) / sum(smoothed)
                largest = [max(a, b * factor) for a, b in zip(largest, smoothed, strict=True)]
        floor = sum(largest) / past
        shares = [mean_norms[head][i] / sum(other[i] for other in mean_norms) for i in range(past)]
        found.append([max(a, floor) * share for a, share in zip(largest, shares, strict=True)])
    assert all(len(head) == window for head in rows)
    return found


def mass_stage(attention: Row, mass: float, most: int) -> list[int]:
    """Entries by falling attention, as long as they and what is protected stay below `mass`."""
    held = 1 - sum(attention)
    taken: list[int] = []
    for entry in sorted(range(len(attention)), key=lambda i: (-attention[i], i)):
        held += attention[entry]
        if held >= mass or len(taken) == most:
            break
        taken.append(entry)
    return taken


def defensive_kept(
    attention: list[Row], scores: list[Row], mass: float, spare: int
) -> list[set[int]]:
    """Heads that compete: the first stage of each, then the highest scores of all others."""
    kept = [set(mass_stage(row, mass, spare)) for row in attention]
    others = [
        (-score, head, entry)
        for head, row in enumerate(scores)
        for entry, score in enumerate(row)
        if entry not in kept[head]
    ]
    for _, head, entry in sorted(others)[: len(kept) * spare - sum(map(len, kept))]:
        kept[head].add(entry)
    return kept


def chunks_kept(scores: Row, size: int, budget: int, past: int) -> set[int]:
    """Whole chunks by falling mean, of each what lies in the past; the last one is cut."""
    chunks = [range(at, min(at + size, len(scores))) for at in range(0, len(scores), size)]
    means = [sum(scores[i] for i in chunk) / len(chunk) for chunk in chunks]
    best = sorted(range(len(chunks)), key=lambda c: (-means[c], c))
    return set([i for c in best for i in chunks[c] if i < past][:budget])


def gated_order(scores: Row, size: int, spiky: int) -> list[int]:
    """Entries as kvpress entropy_gated_chunkkv_press.py takes them, one after the other."""
    chunks = [range(at, min(at + size, len(scores))) for at in range(0, len(scores), size)]
    means = [sum(scores[i] for i in chunk) / len(chunk) for chunk in chunks]
    entropies = []
    for chunk in chunks:
        raised = [scores[i] - min(0, *(scores[j] for j in chunk)) for i in chunk]
        shares = [each / (sum(raised) + 1e-8) for each in raised]
        entropy = -sum(each * math.log(each + 1e-8) for each in shares)
        entropies.append(min(max(entropy / math.log(len(chunk)), 0), 1) if len(chunk) > 1 else 0)
    middle = (len(chunks) - 1) // 2  # of an even number the lower one
    limits = sorted(means)[middle], sorted(entropies)[middle]
    taken: list[int] = []
    for at in sorted(range(len(chunks)), key=lambda c: (-means[c], c)):
        best = sorted(chunks[at], key=lambda i: (-scores[i], i))
        few = means[at] >= limits[0] and entropies[at] < limits[1]
        taken += best[:spiky] if few else best
    left = sorted(set(range(len(scores))) - set(taken), key=lambda i: (-scores[i], i))
    return taken + left


def laprox_scores(
    rows: list[list[Row]], norms: list[Row], group_size: int, kernel: int
) -> list[Row]:
    """||A[:, i]|| ||v_i W_O|| per query head, smoothed, group mean, over the layer's sum.

    Args:
        rows: of one layer.
        norms: L2 norms of V W_O, [query_heads][entries].
        group_size: query heads of a KV head.
        kernel: of the average.
    """
    per_head = []
    for head, own in zip(past_of(rows), norms, strict=True):
        columns = np.linalg.norm(head, axis=0) * own[: head.shape[1]]
        per_head.append(pooled(columns.tolist(), "avg", kernel))
    grouped = group_reduced(per_head, group_size, "mean")
    total = sum(map(sum, grouped))
    return [[each / total for each in row] for row in grouped]


def highest_of_all(layers: list[list[Row]], total: int) -> list[list[set[int]]]:
    """What each head of each layer has of the `total` highest; ties to the earlier."""
    every = [
        (-score, layer, head, i)
        for layer, rows in enumerate(layers)
        for head, row in enumerate(rows)
        for i, score in enumerate(row)
    ]
    kept = [[set() for _ in rows] for rows in layers]  # type: list[list[set[int]]]
    for _, layer, head, i in sorted(every)[:total]:
        kept[layer][head].add(i)
    return kept


def vatp_kept(attention: list[Row], values: list[Row], budget: int, sinks: int) -> set[int]:
    """One KV head's kept positions, as github.com/guozhiyu/vatp 39ea686 utils_hh/modify_llama.py.

    Half of the whole budget is the newest (`recent_budget` and `heavy_budget` are both
    `ratio * length`); of all others the first tokens score highest, then sums of attention times
    ||v||_1. Its mask counts the token to come among the newest; ours is the prompt's.

    Args:
        attention: column sums over all queries of the prompt, [query heads of it][entries].
        values: [entries][value_dim].
        budget: at least twice the sinks.
        sinks: first tokens.
    """
    length = len(values)
    newest = set(range(length - budget // 2, length))
    worth = [
        math.inf if i < sinks else sum(row[i] for row in attention) * sum(map(abs, values[i]))
        for i in range(length)
    ]
    others = sorted(set(range(length)) - newest, key=lambda i: (-worth[i], i))
    return newest | set(others[: budget - budget // 2])


def moved(attention: Row, values: list[Row]) -> Row:
    """How far the output sum a_i v_i goes, in L2, if one entry leaves and the others fill 1.

    1e-6 keeps the weights finite, as in github.com/AozhongZhang/DropKV 67cdfeb dropkv_cache.py.
    """
    weights, states = np.array(attention), np.array(values)
    found = []
    for gone, weight in enumerate(weights):
        others = weights.copy()
        others[gone] = 0.0
        renormalised = others / (1 - weight)
        distance = float(np.linalg.norm(renormalised @ states - weights @ states))
        found.append(distance * (1 - weight) / (1 - weight + 1e-6))
    return found


def dropkv_scores(rows: list[Row], values: list[Row]) -> Row:
    """One query head: the squares, summed over the window's queries."""
    return np.square([moved(row, values) for row in rows]).sum(0).tolist()


def lava_scores(rows: list[list[Row]], values: list[list[Row]], kernel: int) -> list[Row]:
    """github.com/MGDDestiny/Lava 71d3cc8 snapkv_utils.py, LavaKVCluster.calcul_attn_score.

    Args:
        rows: of one layer, [query_heads][window][entries].
        values: [kv_heads][entries][value_dim].
        kernel: of the maximum.
    """
    per_head = []
    for head, past in enumerate(past_of(rows)):
        own = values[head * len(values) // len(rows)][: past.shape[1]]
        largest = max(sum(abs(x) for x in value) for value in own)
        per_head.append([largest * x for x in pooled(past.mean(0).tolist(), "max", kernel)])
    return group_reduced(per_head, len(rows) // len(values), "max")


def entropy(rows: list[Row]) -> float:
    """Of all numbers of a layer as shares of their sum."""
    total = sum(map(sum, rows))
    shares = [each / total for row in rows for each in row if each > 0]
    return -sum(share * math.log(share) for share in shares)
