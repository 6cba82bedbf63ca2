"""The command `sweep`: budgets x alphas x methods on one prompt, read once."""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

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
from ckv_core.cli import running
from ckv_core.cli.options import (
    Commands,
    add_command,
    add_model_options,
    add_prompt_options,
    check_json_path,
    comma_list,
    model_settings,
    prompt_settings,
)
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
from ckv_core.errors import ConfigError
from ckv_core.experiment.stats import MatchOutcome
from ckv_core.request.compare_request import MAX_NEW_TOKENS, CompareRequest
from ckv_core.request.grid import ASK_ABOVE_S, SweepGrid, sweep_cost
from ckv_core.results.events import RunResult
from ckv_core.results.figures import FIGURES
from ckv_core.results.quantities import QUANTITIES
from ckv_core.results.records import VariantResult
from ckv_core.runtime.terminal import say

if TYPE_CHECKING:  # `methods` must not load torch
    from ckv_core.models.loaded import LoadedModel

_METHODS = ("snapkv", "snapkv+critical:stage2=raw", "snapkv+critical:stage2=pooled", "adakv")
_WORDS: dict[MatchOutcome, str] = {
    "better": "N or less",
    "worse": "over N",
    "nothing": NOTHING,
    "rounding": ROUNDING,
}
_ORACLES_SEE = "they see the true attention, which no method does"
_ALWAYS = ("head", "final", "kl", "agreement", "answer")  # columns, known or not


def register(commands: Commands) -> None:
    told = "budgets x alphas x methods on one prompt"
    parser = add_command(commands, "sweep", _sweep, told)
    add_prompt_options(parser)
    add = parser.add_argument
    methods = "without budget and alpha; repeat for several; default: " + ", ".join(_METHODS)
    add("--method", action="append", metavar="SPEC", help=methods)
    add("--budgets", default="64,128,256,512", metavar="LIST", help="default: 64,128,256,512")
    add("--alphas", default="0,0.25,0.5", metavar="LIST", help="of +critical; 0,0.25,0.5")
    tokens = f"0, which only measures, to {MAX_NEW_TOKENS}"
    add("--max-new-tokens", type=int, default=0, metavar="T", help=tokens)
    bounds = (
        "also measure bounds and oracles: the share of heads with sigma over 0.5 and the head L1 "
        "that the true attention would reach, per budget"
    )
    add("--analyse", choices=("bounds",), help=bounds)
    long = f"run also what is expected to take over {ASK_ABOVE_S:.0f} s"
    add("--yes", action="store_true", help=long)
    add_model_options(parser)


def _sweep(options: argparse.Namespace) -> int:
    grid = SweepGrid(
        methods=tuple(options.method or _METHODS),
        budgets=comma_list(options.budgets),
        alphas=comma_list(options.alphas),
    )
    request = grid.request(
        CompareRequest(
            max_new_tokens=options.max_new_tokens,
            analysis=(options.analyse,) if options.analyse else (),
            **prompt_settings(options),
            **model_settings(options),
        )
    )
    request.validate()
    check_json_path(options.json)
    loaded, load_ms = running.load(request)
    if not options.yes:
        _check_cost(request, loaded)
    result = running.run(request, loaded, load_ms)

    told = partial(running.result_document, result)
    running.deliver(options.json, told, lambda: _print_result(result, options.answer))
    return 0


def _check_cost(request: CompareRequest, loaded: "LoadedModel") -> None:
    cost = sweep_cost(
        request,
        running.tokenised(request, loaded).tokens,
        is_counted=True,
        parameters=loaded.parameters,
    )
    if cost.must_ask:
        raise ConfigError(
            f"This sweep has {cost.amount} and would take about {cost.duration} (estimated from "
            f"{cost.basis}); add --yes to run it, or take fewer points, tokens or new tokens."
        )


def _print_result(result: RunResult, answer: str) -> None:
    print_head(result, answer)
    print_verdict(result)
    say(f"\n{len(result.variants)} points, the full cache among them\n")
    known = {figure.key for figure in shown_figures(result)}
    more = [key for key in SWEPT if key in known and key not in _ALWAYS]
    rows = [
        (_name(curve.spec), f"{budget:,}", *_figures(result.variants[index], more))
        for curve in curves(result)
        for budget, index in curve.points
    ]
    outcome = ("outcome", "agreement", *(FIGURES[key].label for key in more))
    unit = "budget" if budget_unit(result) == "tokens" else "KiB"
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
        say(f"\nmean head L1 of oracles with the head budgets of {first}{more}; {_ORACLES_SEE}")
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
        )


def _print_savings(result: RunResult) -> None:
    said: set[MatchOutcome] = set()
    for target in (curve for curve in curves(result) if "+" not in curve.spec):
        for figure in matched_figures(result):
            saved = savings(result, target, figure)
            if not saved:
                continue
            title = f"\nbudget of equal {figure.label} as {target.spec}"
            outcomes = {saving.match.outcome for saving in saved}
            if outcomes == {"nothing"}:
                say(f"{title}: {NOTHING}, {target.spec} is at 0 itself")
                continue
            say(title)
            _print_saved(saved)
            said |= outcomes
    legend = [f"{word}: {MEANINGS[key]}" for key, word in _WORDS.items() if key in said]
    if legend:
        say("\n" + "; ".join(legend))


def _print_saved(saved: list[Saving]) -> None:
    budgets = dict.fromkeys(saving.target_budget for saving in saved)
    rows: dict[Curve, dict[int, str]] = {}
    for saving in saved:
        rows.setdefault(saving.curve, {})[saving.target_budget] = saving.text
    print_table(
        ("method", *(f"at {budget:,}" for budget in budgets)),
        [(_name(c.spec), *(cells.get(b) or "-" for b in budgets)) for c, cells in rows.items()],
    )


def _print_alphas(result: RunResult) -> None:
    optima = alpha_optima(result)
    if optima:
        say(
            "\nbest alpha by head L1, which is not by the answer; gain over it: hindsight, a limit "
            "for the alphas tried"
        )
        print_columns(
            optima,
            {
                "method": lambda each: _name(each.spec),
                "budget": lambda each: f"{each.budget:,}",
                "best alpha": lambda each: f"{each.best_fixed:g}",
                "outcome at it": lambda each: alpha_outcome(result, each) or "-",
                "gain by layer": lambda each: share(each.layer_gain),
                "gain by head": lambda each: share(each.head_gain),
            },
        )


def _name(spec: str) -> str:
    return spec.replace("alpha=0.0", "alpha=0").replace("alpha=1.0", "alpha=1")
