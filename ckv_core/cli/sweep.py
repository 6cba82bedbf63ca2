"""Tables that `compare` prints for several budgets or alphas: points, savings, best alphas."""

from collections.abc import Iterator, Sequence

from ckv_core.analysis.sweep import (
    SWEPT,
    Curve,
    alpha_optima,
    budget_unit,
    curves,
    matched_figures,
    oracle_sets,
    shown_figures,
)
from ckv_core.analysis.sweep_savings import MEANINGS, NOTHING, ROUNDING, Saving, savings
from ckv_core.analysis.verdict import alpha_outcome
from ckv_core.cli.tables import (
    answer_word,
    number,
    print_columns,
    print_floor,
    print_head,
    print_table,
    print_verdict,
    share,
)
from ckv_core.experiment.stats import MatchOutcome
from ckv_core.results.events import RunResult
from ckv_core.results.figures import FIGURES
from ckv_core.results.quantities import QUANTITIES
from ckv_core.results.records import VariantResult
from ckv_core.runtime.terminal import say

_WORDS: dict[MatchOutcome, str] = {
    "better": "N or less",
    "worse": "over N",
    "nothing": NOTHING,
    "rounding": ROUNDING,
}
_ORACLES_SEE = "they see the true attention, which no method does"
_ALWAYS = ("head", "final", "kl", "agreement", "answer")  # columns, known or not


def print_sweep(result: RunResult, answer: str) -> None:
    """Points, budgets of equal quality and best alphas, as tables."""
    print_head(result, answer)
    print_verdict(result)
    say(f"\n{len(result.variants)} points, the full cache among them")
    known = {figure.key for figure in shown_figures(result)}
    more = [key for key in SWEPT if key in known and key not in _ALWAYS]
    rows = [
        (_name(curve.spec), f"{budget:,}", *_figures(result.variants[index], more))
        for curve in curves(result)
        for budget, index in curve.points
    ]
    outcome = ("outcome", "agreement", *(FIGURES[key].label for key in more))
    unit = "budget" if budget_unit(result) == "tokens" else "KiB"
    say()
    print_table(("method", unit, *outcome, "head L1", "final L1", "KL", "heads closer"), rows)
    print_floor(result)
    _print_oracles(result)
    _print_savings(result)
    _print_alphas(result)


def _figures(variant: VariantResult, more: Sequence[str]) -> Iterator[str]:
    """What a point's row says: the answer, the agreement, what `more` names, and what moved."""
    yield answer_word(variant)
    for key in ("agreement", *more, "head", "final", "kl", "improved_heads"):
        figure = FIGURES[key]
        yield (share if figure.is_share else number)(figure.read(variant))


def _print_oracles(result: RunResult) -> None:
    for oracles in oracle_sets(result):
        first, *others = (_name(curve.spec) for curve in oracles.curves)
        more = f" and {len(others)} more" if others else ""
        budgets = [budget for budget, _ in oracles.curves[0].points]
        print_table(
            ("oracle", *(f"at {budget:,}" for budget in budgets)),
            [
                (
                    QUANTITIES[name].label.removeprefix("Oracle: "),
                    *(number(dict(points).get(budget)) for budget in budgets),
                )
                for name, points in oracles.values.items()
            ],
            f"mean head L1 of oracles with the head budgets of {first}{more}; {_ORACLES_SEE}",
        )


def _print_savings(result: RunResult) -> None:
    shown: set[MatchOutcome] = set()
    for target in (curve for curve in curves(result) if "+" not in curve.spec):
        for figure in matched_figures(result):
            saved = savings(result, target, figure)
            if not saved:
                continue
            title = f"budget of equal {figure.label} as {target.spec}"
            outcomes = {saving.match.outcome for saving in saved}
            if outcomes == {"nothing"}:
                say(f"\n{title}: {NOTHING}, {target.spec} is at 0 itself")
                continue
            _print_saved(saved, title)
            shown |= outcomes
    legend = [f"{word}: {MEANINGS[key]}" for key, word in _WORDS.items() if key in shown]
    if legend:
        say("\n" + "; ".join(legend))


def _print_saved(saved: list[Saving], title: str) -> None:
    budgets = dict.fromkeys(saving.target_budget for saving in saved)
    rows: dict[Curve, dict[int, str]] = {}
    for saving in saved:
        rows.setdefault(saving.curve, {})[saving.target_budget] = saving.text
    print_table(
        ("method", *(f"at {budget:,}" for budget in budgets)),
        [(_name(c.spec), *(cells.get(b) or "-" for b in budgets)) for c, cells in rows.items()],
        title,
    )


def _print_alphas(result: RunResult) -> None:
    print_columns(
        alpha_optima(result),
        {
            "method": lambda each: _name(each.spec),
            "budget": lambda each: f"{each.budget:,}",
            "best alpha": lambda each: f"{each.best_fixed:g}",
            "outcome at it": lambda each: alpha_outcome(result, each) or "-",
            "gain by layer": lambda each: share(each.layer_gain),
            "gain by head": lambda each: share(each.head_gain),
        },
        "best alpha by head L1, which is not by the answer; gain over it: hindsight, a limit for "
        "the alphas tried",
    )


def _name(spec: str) -> str:
    return spec.replace("alpha=0.0", "alpha=0").replace("alpha=1.0", "alpha=1")
