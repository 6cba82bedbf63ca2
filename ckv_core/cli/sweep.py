"""What `compare` prints of several budgets or alphas: points, savings, best alphas."""

from ckv_core.base.terminal import say
from ckv_core.cli.tables import (
    print_columns,
    print_floor,
    print_head,
    print_points,
    print_table,
    print_verdict,
    share,
)
from ckv_core.experiment.runs import together
from ckv_core.experiment.savings import MEANINGS, saving_rows
from ckv_core.experiment.sweep import alpha_optima, curves, matched_metrics
from ckv_core.experiment.verdict import alpha_outcome
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import METRICS


def print_sweep(result: RunResult, answer: str) -> None:
    """Points, budgets of equal quality and best alphas, as tables."""
    print_head(result, answer)
    print_verdict(result)
    say(f"\n{len(result.variants)} points, the full cache among them")
    print_points(together([result]))
    print_floor(result)
    _print_savings(result)
    _print_alphas(result)


def _print_savings(result: RunResult) -> None:
    lines, keys = curves(result), [metric.key for metric in matched_metrics(result)]
    targets = [curve for curve in lines if not curve.first.identity.settings.critical]
    pairs = [(line, target) for target in targets for line in lines if line is not target]
    rows = []
    for savings in saving_rows(pairs, keys):
        first = next(iter(savings.values()))
        at = f"{first.target.first.curve_spec} at {first.target_budget}"
        texts = [savings[key].text if key in savings else "-" for key in keys]
        rows.append((first.curve.first.curve_spec, at, *texts))
    head = ("method", "matches", *(METRICS[key].label for key in keys))
    print_table(head, rows, "budget needed for equal quality")
    if rows:
        say("\nN or less: " + MEANINGS["better"] + "; over N: " + MEANINGS["worse"])


def _print_alphas(result: RunResult) -> None:
    print_columns(
        alpha_optima(result),
        {
            "method": lambda each: each.spec,
            "budget": lambda each: str(each.budget),
            "best alpha": lambda each: f"{each.best_fixed:g}",
            "outcome at it": lambda each: alpha_outcome(result, each) or "-",
            "gain by layer": lambda each: share(each.layer_gain),
            "gain by head": lambda each: share(each.head_gain),
        },
        "best alpha by head L1, which is not by the answer; gain over it: hindsight, a limit for "
        "the alphas tried",
    )
