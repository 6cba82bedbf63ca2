"""Which entries a step of Quest or RocketKV reads, as literal loops.

Quest: mit-han-lab/Quest@01c1623 evaluation/quest_attention.py, `local_heavy_hitter_mask` and the
chunked maximum of keys times the query's sign; heads of a group by the mean of their softmaxes.
RocketKV: NVlabs/RocketKV@63637c8 pipeline/inf_stream_llm/inf_llm/attention/rocket.py, and
`compress` of infllm_utils.py for the sizes.
"""

import math
from collections.abc import Sequence

Rows = Sequence[Sequence[float]]


def softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(each - top) for each in logits]
    return [each / sum(powers) for each in powers]


def quest_entries(queries: Rows, keys: Rows, page: int, budget: int, factor: float) -> list[int]:
    """Entries of one KV head that its query heads read."""
    pages = len(keys) // page
    rest = list(range(pages * page, len(keys)))
    count = max(1, (budget - len(rest)) // page)
    if count >= pages:
        return list(range(len(keys)))
    means = [0.0] * pages
    for query in queries:
        bounds = []
        for at in range(pages):
            own = keys[at * page : (at + 1) * page]
            most = (max(each * key[d] for key in own) for d, each in enumerate(query))
            bounds.append(factor * sum(most))
        for at, share in enumerate(softmax(bounds)):
            means[at] += share / len(queries)
    best = sorted(sorted(range(pages), key=lambda at: -means[at])[:count])
    return [at * page + step for at in best for step in range(page)] + rest


def attention(
    queries: Rows, keys: Rows, values: Rows, read: Sequence[int], factor: float
) -> tuple[list[list[float]], list[float]]:
    """Output and log of the denominator of each query over the entries read."""
    outputs, totals = [], []
    for query in queries:
        logits = [factor * sum(a * b for a, b in zip(query, keys[i], strict=True)) for i in read]
        shares = softmax(logits)
        channels = range(len(values[0]))
        outputs.append(
            [sum(p * values[i][d] for p, i in zip(shares, read, strict=True)) for d in channels]
        )
        totals.append(max(logits) + math.log(sum(math.exp(x - max(logits)) for x in logits)))
    return outputs, totals


def rocket_held(budget: int, prompt: int) -> int:
    """Entries that the first stage keeps of a prompt, without room for new tokens."""
    ratio = max(1.0, prompt / budget)
    return max(budget, int(prompt / ratio ** min(0.2 + math.log2(ratio) * 0.06, 0.8)))


def rocket_scores(rows: Sequence[Sequence[Rows]], group: int, window: int, kernel: int) -> Rows:
    """The first stage's: sums over the window, then over a group's heads, then maxima.

    Args:
        rows: [query_heads][window][entries], the window's own last.
    """
    found = []
    for first in range(0, len(rows), group):
        past = len(rows[0][0]) - window
        sums = [sum(row[i] for head in rows[first : first + group] for row in head)
                for i in range(past)]  # fmt: skip
        reach = kernel // 2
        found.append([max(sums[max(0, i - reach) : i + reach + 1]) for i in range(past)])
    return found


def rocket_entries(queries: Rows, keys: Rows, budget: int, factor: float) -> list[int]:
    """Entries of one KV head that its query heads read; of a chunk the earlier come first."""
    length, width = len(keys), len(keys[0])
    if budget >= length:
        return list(range(length))
    ratio = length / budget
    chunk = math.ceil(math.sqrt(ratio))
    if chunk > ratio:
        chunk = 1
    means = [sum(abs(query[d]) for query in queries) / len(queries) for d in range(width)]
    largest = sorted(range(width), key=lambda d: -means[d])[: max(1, int(width * chunk / ratio))]
    signs = [1 if sum(query[d] for query in queries) > 0 else -1 for d in range(width)]
    chances = [0.0] * length
    for query in queries:
        share = sum(abs(query[d]) for d in largest) / sum(map(abs, query))
        logits = []
        for i in range(length):
            own = keys[i // chunk * chunk : (i // chunk + 1) * chunk]
            bound = sum(signs[d] * query[d] * max(signs[d] * key[d] for key in own)
                        for d in largest)  # fmt: skip
            logits.append(bound * factor / math.sqrt(share))
        for i, each in enumerate(softmax(logits)):
            chances[i] += each / len(queries)
    rounded = [float(f"{each:.6g}") for each in chances]
    return sorted(sorted(range(length), key=lambda i: (-rounded[i], i))[: max(1, budget // 2)])
