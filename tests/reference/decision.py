"""The decision written out in loops over Python numbers: slow, and short enough to be read whole.

An e-value is what a bettor's capital has grown to who may not win on average if the claim is false.
"""

from itertools import combinations
from math import inf, isnan, log

BETS = {
    1.0: 0.45,
    0.75: 0.25,
    0.5: 0.15,
    0.25: 0.15,
}  # stake of the capital -> share of the bettors
STEPS = 1000


def losses_of(full, scores, sources):
    """(lowest, highest) loss of each source that the full cache has a score in, a row a point."""
    names = list(dict.fromkeys(s for s, f in zip(sources, full, strict=True) if not isnan(f)))
    rows = []
    for name in names:
        own = [
            (f, s)
            for f, s, n in zip(full, scores, sources, strict=True)
            if n == name and not isnan(f)
        ]
        low = [f - (1.0 if isnan(s) else s) for f, s in own]
        high = [f - (0.0 if isnan(s) else s) for f, s in own]
        rows.append((sum(low) / len(low), sum(high) / len(high)))
    return rows


def e_value(ratios):
    """What 1 has become, as a logarithm: each bettor stakes a share on every ratio."""
    logs = []
    for stake, share in BETS.items():
        grown = log(share)
        for ratio in ratios:
            factor = 1 - stake + stake * ratio
            grown += log(factor) if factor > 0 else -inf
        logs.append(grown)
    return added(logs)


def added(logs):
    """The logarithm of the sum."""
    most = max(logs)
    if most == -inf:
        return most
    return most + log(sum(2.718281828459045 ** (each - most) for each in logs))


def keeps_all(points, tolerance):
    """Points of [methods][budgets] that keep, by closed testing; each a list of (low, high)."""
    tests = [
        [e_value([(1 - high) / (1 - tolerance) for _, high in point]) for point in reversed(method)]
        for method in points
    ]
    return [row[::-1] for row in claims(tests)]


def loses_all(points, tolerance):
    tests = [
        [e_value([(1 + low) / (1 + tolerance) for low, _ in point]) for point in method]
        for method in points
    ]
    return claims(tests)


def claims(tests):
    """A claim stands if every set of methods that holds it is refused by its mean e-value."""
    chains = [[min(row[: at + 1]) for at in range(len(row))] for row in tests]
    everybody = range(len(chains))
    found = []
    for method in everybody:
        others = [other for other in everybody if other != method]
        sets = [each for size in range(len(others) + 1) for each in combinations(others, size)]
        found.append(
            [
                all(
                    added([own, *(chains[other][-1] for other in each)]) - log(len(each) + 1)
                    >= log(20)
                    for each in sets
                )
                for own in chains[method]
            ]
        )
    return found


def decided(full, table, sources, step):
    """States, at most and at least, [methods][budgets], of a tolerance in thousandths."""
    points = [[losses_of(full, point, sources) for point in method] for method in table]
    nothing = losses_of(full, [0.0] * len(full), sources)
    can_show = loses_all([[nothing]], step / STEPS)[0][0]
    keeps = [keeps_all(points, at / STEPS) for at in range(STEPS)]
    loses = [loses_all(points, at / STEPS) for at in range(STEPS)]
    states, most, least = [], [], []
    for m, method in enumerate(table):
        states.append([])
        most.append([])
        least.append([])
        for b in range(len(method)):
            shown = [at for at in range(STEPS) if keeps[at][m][b]]
            most[m].append(min(shown, default=STEPS) / STEPS)
            lost = [at for at in range(STEPS) if loses[at][m][b]]
            least[m].append(max(lost) / STEPS if lost else None)
            state = "loses" if loses[step][m][b] else "undecided"
            states[m].append("keeps" if keeps[step][m][b] and can_show else state)
    return states, most, least, can_show
