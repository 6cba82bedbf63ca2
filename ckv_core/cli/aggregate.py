"""What `analyse` prints: means over prompts."""

from collections.abc import Callable, Sequence
from operator import attrgetter

from ckv_core.analysis.ablation_means import AblationStepMeans, ablation_means
from ckv_core.analysis.aggregate import (
    BUDGET_UNITS,
    Aggregate,
    aggregate_joined,
    budget_curves,
    hidden_by_layer,
    reduction_by_layer,
    varied_units,
)
from ckv_core.analysis.aggregate_runs import Joined, JoinedVariant, join, newest_of_each
from ckv_core.analysis.evidence import held
from ckv_core.analysis.pairs import COMPARED, Pair, compare_pairs
from ckv_core.cli.tables import GENERATION_TITLE, SCORES, interval, print_columns, print_table
from ckv_core.experiment.stats import Interval, interval_note, mean_interval, score_interval
from ckv_core.methods.parameters import Budget
from ckv_core.results.chain import COVERED
from ckv_core.results.events import RunResult
from ckv_core.results.figures import FIGURES, figures_in
from ckv_core.results.outcomes import cut_note
from ckv_core.results.passages import spans_of
from ckv_core.runtime.terminal import say


def print_results(results: Sequence[RunResult], answers: Sequence[str]) -> None:
    """All tables.

    Args:
        results: runs of the same variants; of a prompt that is there twice the last counts.
        answers: reference answer of each; empty for none.
    """
    joined = join(results)
    chosen = newest_of_each(results)
    results, answers = [results[at] for at in chosen], [answers[at] for at in chosen]
    _print_head(joined, results)
    members = aggregate_joined(joined)
    print_columns(members, DISTANCES, DISTANCES_TITLE)
    _print_budgets(members)
    _print_layers(members)
    steps = ablation_means(joined.variants)
    base = steps[0].step.spec if steps else ""
    print_columns(steps, STEPS, f"ablation over {base}; heads below the base's L1")
    print_bounds(members)
    forced = [member for member in members if "forced_kl" in member.figures]
    print_columns(forced, FORCED, "on the full cache's own continuation")
    _print_generation(members)
    _print_pairs(joined.variants)
    _print_quantities(members)
    if any(answer.strip() for answer in answers):
        _print_evidence(results, answers)
    if cut := cut_note([v for member in members for v in member.joined.variants]):
        say(f"warning: {cut}")
    for note in dict.fromkeys(
        f"{member.spec}: {note}" for member in members for note in member.notes
    ):
        say(f"note: {note}")


def _print_head(joined: Joined, results: Sequence[RunResult]) -> None:
    model = joined.model
    tokens = [result.prompt.tokens for result in results if result.prompt]
    if model is not None:
        say(
            f"{model.name} ({model.dtype}, {model.device}); {joined.n} "
            f"prompt{'' if joined.n == 1 else 's'} of {min(tokens):,} to {max(tokens):,} tokens"
        )
    say("mean [95 % interval over prompts: Wilson of shares and scores, Student of all others]")
    for note in filter(None, (interval_note(joined.n, joined.fewest), *joined.notes)):
        say(f"note: {note}")


# --- columns ----------------------------------------------------------------------------


def _spec(member: Aggregate) -> str:
    return member.spec


def _mean(key: str, *, percent: bool = False) -> Callable[[Aggregate], str]:
    """The column of one figure's means."""
    return lambda member: interval(member.figures.get(key), percent=percent)


def _heads_won(member: Aggregate) -> str:
    wins = member.head_wins
    return "-" if wins is None else f"{wins.count}/{wins.heads} {wins.share:.1%}"


def _differing(member: Aggregate) -> list[int]:
    """Where texts first differ from the full cache's, counted from 1."""
    firsts = (variant.first_difference for variant in member.joined.variants)
    return [first + 1 for first in firsts if first is not None]


def _texts_that_differ(member: Aggregate) -> str:
    compared = sum(variant.agreement is not None for variant in member.joined.variants)
    return f"{len(_differing(member))} of {compared}" if compared else "-"


def _first_differences(member: Aggregate) -> str:
    first = _differing(member)
    return interval(mean_interval(first)) if first else "-"


DISTANCES_TITLE = (
    "first decoding step; heads closer to the full cache than without CriticalKV\n"
    "heads won: those whose mean head L1 over the prompts is below the base's"
)
DISTANCES = {
    "variant": _spec,
    "head L1": _mean("head"),
    "final L1": _mean("final"),
    "KL": _mean("kl"),
    "heads closer": _mean("improved_heads", percent=True),
    "heads won": _heads_won,
}
STEPS: dict[str, Callable[[AblationStepMeans], str]] = {
    "step": lambda step: step.step.label,
    "head L1": lambda step: interval(step.head_l1),
    "heads below base": lambda step: interval(step.better_heads, percent=True),
    "final L1 / base's": lambda step: interval(step.final_of_base),
    "n": lambda step: str(step.n),
}
BOUNDS_TITLE = (
    "bounds; the chain L1 <= theta <= theta-hat <= relaxed, means over the covered heads\n"
    "covered: sigma > 0.5, as the theorems ask; not the same heads for every variant"
)
BOUNDS: dict[str, Callable[[Aggregate], str]] = {
    "variant": _spec,
    "covered heads": lambda member: f"{member.checked:,} of {member.bounded:,}",
    **dict(zip(("L1", "theta", "theta-hat", "relaxed"), map(_mean, COVERED), strict=True)),
    "n": lambda member: str(member.figures["theta"].n if "theta" in member.figures else 0),
    "chain broken": lambda member: f"{member.violations:,} of {member.checked:,}",
}
MASSES_TITLE = (
    "attention mass of stage 1 and tightness, means over all heads\n"
    "oracle: the most attention that as many entries as stage 1 takes could hold"
)
MASSES = {"variant": _spec, "sigma": _mean("sigma_stage1"), "L1 / theta": _mean("tightness")}
GROUP_TITLE = "\ngroup: both summed over the query heads that share a KV head's kept set"
GROUP = {"group L1 / theta": _mean("group_tightness")}
HALVES = {
    "sigma > 0.5": _mean("sigma_over_half", percent=True),
    "oracle > 0.5": _mean("oracle_over_half", percent=True),
}
FORCED = {
    "variant": _spec,
    "same first choice": _mean("forced_top1"),
    "KL": _mean("forced_kl"),
    "rank": _mean("forced_rank"),
}
GENERATION: dict[str, Callable[[Aggregate], str]] = {
    "variant": _spec,
    "agreement": _mean("agreement", percent=True),
    "texts that differ": _texts_that_differ,
    "at token": _first_differences,
}
CUT: dict[str, Callable[[Aggregate], str]] = {
    "cut before it": lambda member: f"{member.cut} of {len(member.joined.variants)}"
}


# --- tables -----------------------------------------------------------------------------


def _print_budgets(members: Sequence[Aggregate]) -> None:
    """The final layer against the budget, a table per unit; nothing where no budget varies."""
    curves = budget_curves(members)
    for unit in varied_units(curves, "final"):
        rows = [(curve.spec, curve.values("final")) for curve in curves if curve.unit == unit]
        budgets = sorted(
            {budget for _, points in rows for budget, _ in points}, key=attrgetter("amount")
        )
        print_table(
            ("variant", *(f"at {budget}" for budget in budgets), "n"),
            [
                (spec, *(interval(dict(points).get(b)) for b in budgets), _prompts(points))
                for spec, points in rows
                if points
            ],
            f"final layer against the budget, {BUDGET_UNITS[unit]}; final hidden L1",
        )


def _prompts(points: Sequence[tuple[Budget, Interval]]) -> str:
    """How many prompts a row's means are of; the fewest and the most where they differ."""
    counts = sorted({mean.n for _, mean in points})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _print_layers(members: Sequence[Aggregate]) -> None:
    """Hidden L1 at a few depths, and by how much CriticalKV lowers it; --means has all layers."""
    variants = [member.joined for member in members]
    tables = {
        "": {member.spec: hidden_by_layer(member) for member in variants},
        ", base minus CriticalKV": {
            member.spec: reduction_by_layer(member, variants) for member in variants
        },
    }
    for what, means in tables.items():
        known = {spec: layers for spec, layers in means.items() if layers is not None}
        last = len(next(iter(known.values()), ())) - 1
        shown = sorted({round(last * quarter / 4) for quarter in range(5)})
        print_table(
            ("variant", *(f"layer {at}" for at in shown), "n"),
            [
                (spec, *(interval(layers[at]) for at in shown), str(layers[0].n))
                for spec, layers in known.items()
            ],
            f"hidden L1 after a layer{what}; of {last + 1} layers, from 0 on",
        )


def print_bounds(members: Sequence[Aggregate]) -> None:
    """The chain, masses and tightness; nothing where no bound was measured."""
    bounded = [member for member in members if member.violations is not None]
    print_columns(bounded, BOUNDS, BOUNDS_TITLE)
    # Of a model whose query heads each have a KV head it would be the same number.
    if any("group_tightness" in member.figures for member in bounded):
        print_columns(bounded, {**MASSES, **GROUP, **HALVES}, MASSES_TITLE + GROUP_TITLE)
    else:
        print_columns(bounded, {**MASSES, **HALVES}, MASSES_TITLE)


def _print_generation(members: Sequence[Aggregate]) -> None:
    """Each variant's own text against the full cache's and the reference answer."""
    known = {key for member in members for key in member.figures}
    scores = {SCORES[key]: _mean(key, percent=True) for key in SCORES if key in known}
    if scores or "agreement" in known:
        cut = CUT if any(member.cut for member in members) else {}
        print_columns(members, {**GENERATION, **cut, **scores}, GENERATION_TITLE)


def _print_pairs(variants: Sequence[JoinedVariant]) -> None:
    """Each variant minus its base, and minus the full cache, on the same prompts."""
    pairs = compare_pairs(variants)
    keys = [key for key in COMPARED if any(key in pair.figures for pair in pairs)]
    print_table(
        ("variant", "minus", *(COMPARED[key] for key in keys)),
        [(p.variant.spec, p.other.spec, *(_difference(key, p) for key in keys)) for p in pairs]
        if keys
        else (),
        "pairs: variant minus the other on the same prompts, mean [95 % interval]\n"
        "yes or no: prompts gained and lost, and p of the exact McNemar test, of this pair alone",
    )


def _difference(key: str, pair: Pair) -> str:
    difference = pair.figures.get(key)
    if difference is None:
        return "-"
    if difference.p is None:
        return interval(difference.mean, percent=FIGURES[key].is_share) + difference.level_note
    return f"+{difference.higher} -{difference.lower}, p = {difference.p:.2g}"


def _print_quantities(members: Sequence[Aggregate]) -> None:
    """What shares one chart on the Aggregate page, without what has a table here."""
    labels = {
        key: figure.mean_label
        for key, figure in figures_in("choice").items()
        if figure.is_covered or figure.axes not in ("variant", "step")
    }
    rows = [
        (label, member.spec, interval(member.figures[name]), str(member.figures[name].n))
        for name, label in labels.items()
        for member in members
        if name in member.figures
    ]
    title = "all measured quantities: mean over heads or layers, then over n prompts"
    print_table(("quantity", "variant", "mean", "n"), rows, title)


def _print_evidence(results: Sequence[RunResult], answers: Sequence[str]) -> None:
    """Slots that keep the reference answer's occurrences, against random places."""
    kept: dict[str, list[tuple[float, float]]] = {}
    missing = 0
    for result, answer in zip(results, answers, strict=True):
        if result.prompt is None or result.model is None:
            continue
        spans = spans_of(result.prompt, answer)
        missing += not spans
        for variant in result.variants:
            evidence = held(variant, spans, result.model.evictable_layers)
            if evidence is not None:
                kept.setdefault(variant.spec, []).append((evidence.mean, evidence.chance))
    say("\nslots that keep the reference answer's occurrences")
    if missing:
        say(f"the answer does not occur in {missing} of {len(results)} compressed prompts")
    print_table(
        ("variant", "kept", "expected at random", "n"),
        [
            (
                spec,
                *(interval(score_interval(c), percent=True) for c in zip(*pairs, strict=True)),
                str(len(pairs)),
            )
            for spec, pairs in kept.items()
        ],
    )
