"""What `analyse` prints: means over prompts. Imported late, for scipy takes a second."""

from collections.abc import Sequence

from ckv_core.analysis.ablation_means import ablation_means
from ckv_core.analysis.against_budget import BUDGET_UNITS, budget_curves, varied_units
from ckv_core.analysis.aggregate import Aggregate, aggregate_joined
from ckv_core.analysis.aggregate_runs import JoinedVariant, join, newest_of_each
from ckv_core.analysis.chain import COVERED
from ckv_core.analysis.evidence import held
from ckv_core.analysis.intervals import Interval, interval_note, mean_interval
from ckv_core.analysis.layer_means import hidden_by_layer, reduction_by_layer
from ckv_core.analysis.pairs import COMPARED, Difference, compare_pairs
from ckv_core.analysis.sweep import FIGURES, cut_note
from ckv_core.cli.tables import GENERATION_TITLE, SCORES, interval, print_table
from ckv_core.methods.parameters import Budget
from ckv_core.results.events import RunResult
from ckv_core.results.passages import spans_of
from ckv_core.results.quantities import QUANTITIES
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
    model = joined.model
    tokens = [result.prompt.tokens for result in results if result.prompt]
    if model is not None:
        say(
            f"{model.name} ({model.dtype}, {model.device}); {_counted(joined.n)} of "
            f"{min(tokens):,} to {max(tokens):,} tokens"
        )
    say("mean [95 % interval over prompts: BCa bootstrap, exact for yes-or-no shares]")
    if told := interval_note(joined.n, joined.fewest):
        say(f"note: {told}")
    for note in joined.notes:
        say(f"note: {note}")
    found = aggregate_joined(joined)
    _print_distances(found)
    _print_budgets(found)
    _print_layers(found)
    _print_ablations(joined.variants)
    print_bounds(found)
    _print_forced(found)
    _print_generation(found)
    _print_pairs(joined.variants)
    _print_quantities(found)
    if any(answer.strip() for answer in answers):
        _print_evidence(results, answers)
    if cut := cut_note([v for each in found for v in each.joined.variants]):
        say(f"warning: {cut}")
    for note in dict.fromkeys(f"{each.spec}: {note}" for each in found for note in each.notes):
        say(f"note: {note}")


def _print_distances(found: Sequence[Aggregate]) -> None:
    say("\nfirst decoding step; heads closer to the full cache than without CriticalKV")
    say("heads won: those whose mean head L1 over the prompts is below the base's")
    rows = []
    for each in found:
        wins = each.head_wins
        won = "-" if wins is None else f"{wins.count}/{wins.heads} {wins.share:.1%}"
        figures = [interval(each.figures.get(key)) for key in ("head", "final", "kl")]
        better = interval(each.figures.get("improved_heads"), percent=True)
        rows.append((each.spec, *figures, better, won))
    print_table(("variant", "head L1", "final L1", "KL", "heads closer", "heads won"), rows)


def _print_budgets(found: Sequence[Aggregate]) -> None:
    """The final layer against the budget, a table per unit; nothing where no budget varies."""
    curves = budget_curves(found)
    for unit in varied_units(curves, "final"):
        rows = [(curve.spec, curve.values("final")) for curve in curves if curve.unit == unit]
        budgets = sorted({budget for _, points in rows for budget, _ in points}, key=_amount)
        say(f"\nfinal layer against the budget, {BUDGET_UNITS[unit]}; final hidden L1")
        print_table(
            ("variant", *(f"at {budget}" for budget in budgets), "n"),
            [
                (spec, *(interval(dict(points).get(b)) for b in budgets), _prompts(points))
                for spec, points in rows
                if points
            ],
        )


def _print_layers(found: Sequence[Aggregate]) -> None:
    """Hidden L1 at a few depths, and by how much CriticalKV lowers it; --means has all layers."""
    variants = [each.joined for each in found]
    tables = {
        "": {each.spec: hidden_by_layer(each) for each in variants},
        ", base minus CriticalKV": {
            each.spec: reduction_by_layer(each, variants) for each in variants
        },
    }
    for what, means in tables.items():
        known = {spec: layers for spec, layers in means.items() if layers is not None}
        if not known:
            continue
        last = len(next(iter(known.values()))) - 1
        shown = sorted({round(last * quarter / 4) for quarter in range(5)})
        say(f"\nhidden L1 after a layer{what}; of {last + 1} layers, from 0 on")
        print_table(
            ("variant", *(f"layer {at}" for at in shown), "n"),
            [
                (spec, *(interval(layers[at]) for at in shown), str(layers[0].n))
                for spec, layers in known.items()
            ],
        )


def _counted(prompts: int) -> str:
    return f"{prompts} prompt{'' if prompts == 1 else 's'}"


def _amount(budget: Budget) -> float:
    return budget.amount


def _prompts(points: Sequence[tuple[Budget, Interval]]) -> str:
    """How many prompts a row's means are of; the fewest and the most where they differ."""
    counts = sorted({mean.n for _, mean in points})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _print_ablations(variants: Sequence[JoinedVariant]) -> None:
    """Each step against the ablation's base, over the prompts."""
    steps = ablation_means(variants)
    if not steps:
        return
    say(f"\nablation over {steps[0].step.spec}; heads below the base's L1")
    print_table(
        ("rung", "head L1", "heads below base", "final L1 / base's", "n"),
        [
            (
                each.step.label,
                interval(each.head_l1),
                interval(each.better_heads, percent=True),
                interval(each.final_of_base),
                str(each.n),
            )
            for each in steps
        ],
    )


def print_bounds(found: Sequence[Aggregate]) -> None:
    """The chain, masses and tightness; nothing where no bound was measured."""
    bounded = [each for each in found if each.violations is not None]
    if not bounded:
        return
    say("\nbounds; the chain L1 <= theta <= theta-hat <= relaxed, means over the covered heads")
    say("covered: sigma > 0.5, as the theorems ask; not the same heads for every variant")
    print_table(
        ("variant", "covered heads", "L1", "theta", "theta-hat", "relaxed", "n", "chain broken"),
        [
            (
                each.spec,
                f"{each.checked:,} of {each.bounded:,}",
                *(interval(each.figures.get(key)) for key in COVERED),
                str(each.figures.prompts("theta") if "theta" in each.figures else 0),
                f"{each.violations:,} of {each.checked:,}",
            )
            for each in bounded
        ],
    )
    columns = {"sigma": "sigma_stage1", "L1 / theta": "tightness"}
    # Of a model whose query heads each have a KV head it would be the same number.
    if any("group_tightness" in each.figures for each in bounded):
        columns["group L1 / theta"] = "group_tightness"
    say("\nattention mass of stage 1 and tightness, means over all heads")
    say("oracle: the most attention that as many entries as stage 1 takes could hold")
    if "group L1 / theta" in columns:
        say("group: both summed over the query heads that share a KV head's kept set")
    print_table(
        ("variant", *columns, "sigma > 0.5", "oracle > 0.5"),
        [
            (
                each.spec,
                *(interval(each.figures.get(key)) for key in columns.values()),
                interval(each.figures.get("sigma_over_half"), percent=True),
                interval(each.figures.get("oracle_over_half"), percent=True),
            )
            for each in bounded
        ],
    )


def _print_forced(found: Sequence[Aggregate]) -> None:
    keys = ("forced_top1", "forced_kl", "forced_rank")
    rows = [
        (each.spec, *(interval(each.figures.get(key)) for key in keys))
        for each in found
        if "forced_kl" in each.figures
    ]
    if rows:
        say("\non the full cache's own continuation")
        print_table(("variant", "same first choice", "KL", "rank"), rows)


def _print_generation(found: Sequence[Aggregate]) -> None:
    """Each variant's own text against the full cache's and the reference answer."""
    scores = {k: label for k, label in SCORES.items() if any(k in each.figures for each in found)}
    if not scores and not any("agreement" in each.figures for each in found):
        return
    say(GENERATION_TITLE)
    rows = []
    any_cut = any(each.cut for each in found)
    for each in found:
        variants = each.joined.variants
        compared = sum(variant.agreement is not None for variant in variants)
        first = [v.first_difference + 1 for v in variants if v.first_difference is not None]
        rows.append(
            (
                each.spec,
                interval(each.figures.get("agreement"), percent=True),
                f"{len(first)} of {compared}" if compared else "-",
                interval(mean_interval(first)) if first else "-",
                *([f"{each.cut} of {len(variants)}"] if any_cut else []),
                *(interval(each.figures.get(key), percent=True) for key in scores),
            )
        )
    cut = ["cut before it"] if any_cut else []
    head = ("variant", "agreement", "texts that differ", "at token", *cut, *scores.values())
    print_table(head, rows)


def _print_pairs(variants: Sequence[JoinedVariant]) -> None:
    """Each variant minus its base, and minus the full cache, on the same prompts."""
    pairs = compare_pairs(variants)
    keys = [key for key in COMPARED if any(key in pair.figures for pair in pairs)]
    if not keys:
        return
    say("\npairs: variant minus the other on the same prompts, mean [95 % bootstrap interval]")
    say("yes or no: prompts gained and lost, and p of the exact McNemar test, of this pair alone")
    print_table(
        ("variant", "minus", *(COMPARED[key] for key in keys)),
        [
            (
                pair.variant.spec,
                pair.other.spec,
                *(_difference(key, pair.figures.get(key)) for key in keys),
            )
            for pair in pairs
        ],
    )


def _difference(key: str, found: Difference | None) -> str:
    if found is None:
        return "-"
    if found.p is None:
        return interval(found.mean, percent=FIGURES[key].unit == "1") + found.level_note
    return f"+{found.higher} -{found.lower}, p = {found.p:.2g}"


def _print_quantities(found: Sequence[Aggregate]) -> None:
    """Every measured array but those by step, which have a table; a mean over heads or layers."""
    every = {q.name: q.label for q in QUANTITIES.values() if q.axes != "step"}
    labels = {name: label for name, label in every.items() if name not in COVERED} | COVERED
    rows = [
        (label, each.spec, interval(each.figures[name]), str(each.figures.prompts(name)))
        for name, label in labels.items()
        for each in found
        if name in each.figures
    ]
    if rows:
        say("\nall measured quantities: mean over heads or layers, then over n prompts")
        print_table(("quantity", "variant", "mean", "n"), rows)


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
            found = held(variant, spans, result.model.evictable_layers)
            if found is not None:
                kept.setdefault(variant.spec, []).append((found.mean, found.chance))
    say("\nslots that keep the reference answer's occurrences")
    if missing:
        say(f"the answer does not occur in {missing} of {len(results)} compressed prompts")
    if kept:
        columns = {spec: tuple(zip(*pairs, strict=True)) for spec, pairs in kept.items()}
        print_table(
            ("variant", "kept", "expected at random", "n"),
            [
                (spec, *(interval(mean_interval(c), percent=True) for c in two), str(len(two[0])))
                for spec, two in columns.items()
            ],
        )
