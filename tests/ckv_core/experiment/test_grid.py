"""Methods by budgets: which cell is which, and the smallest budget."""

from dataclasses import replace

from ckv_core.experiment.sentences import budget_words
from ckv_core.experiment.verdict import read_grid
from ckv_core.methods.parameters import Budget
from ckv_core.records.events import RunResult
from tests.factories.runs import receipt, run_of, sweep_result, variant


def point(spec: str, answered: bool | None, budget: int):
    params = {"budget": budget, "window": 32}
    ended = {"stopped": "eos", "answer_found": answered} if answered is not None else {}
    return variant(spec, receipt=receipt(budget), params=params, **ended)


def states(result: RunResult) -> dict[str, list[str | None]]:
    grid = read_grid(result)
    return {line.name: [p and p.state for p in line.points] for line in grid.lines}


def test_lines_are_methods_and_columns_the_budgets_as_requested():
    result = run_of(
        variant("full", stopped="eos", answer_found=True),
        point("snapkv:budget=20%", True, 20),
        point("snapkv:budget=5%", False, 5),
        point("adakv:budget=20%", None, 20),
    )
    grid = read_grid(replace(result, kind="sweep"))
    assert [budget_words(budget) for budget in grid.budgets] == ["5 %", "20 %"]
    assert states(result) == {"SnapKV": ["lost", "kept"], "AdaKV": [None, None]}
    snapkv, adakv = grid.lines
    assert [p.index for p in snapkv.points if p] == [2, 1]
    assert (snapkv.smallest, adakv.smallest) == (1, None)
    assert adakv.points[0] is None  # not run at it


def test_each_alpha_is_a_line_and_one_alpha_is_not_named():
    many = [line.name for line in read_grid(sweep_result()).lines]
    assert many == ["SnapKV", *(f"CriticalKV-SnapKV alpha {a}" for a in ("0", "0.25", "0.5"))]
    one = sweep_result()
    one.variants = [v for v in one.variants if v.params.get("alpha", 0.5) == 0.5]
    assert [line.name for line in read_grid(one).lines] == ["SnapKV", "CriticalKV-SnapKV"]


def test_lines_stay_together_before_all_points_are_selected():
    result = sweep_result()
    result.variants = [
        v if at < 7 else replace(v, params={}, receipt=None) for at, v in enumerate(result.variants)
    ]
    grid = read_grid(result)
    assert [len([p for p in line.points if p]) for line in grid.lines] == [4, 4, 4, 4]


def test_the_best_line_comes_first():
    result = sweep_result(generated=True)
    result.variants = [replace(v, stopped="eos", answer_found=True) for v in result.variants]
    low = result.variants[1]
    result.variants[1] = replace(low, answer_found=False)
    assert [line.name for line in read_grid(result).best_first.lines][-1] == "SnapKV"


def test_words_of_budgets():
    budgets = [Budget(2.5, "percent"), Budget(1200, "tokens"), Budget(4, "mib")]
    words = ["2.5 %", "1,200 tokens", "4 MiB"]
    assert [*map(budget_words, budgets)] == words
    assert [*map(budget_words, ("2.5%", "1200", "4MiB"))] == words
    assert [*map(budget_words, (None, "half"))] == ["all", "half"]
