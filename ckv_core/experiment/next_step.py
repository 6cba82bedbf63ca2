"""The next step that a result itself suggests, as the command line and pages say it. No torch."""

from collections.abc import Iterable, Sequence

from ckv_core.errors import ConfigError
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.sentences import LEAST_FULL, counted, listed
from ckv_core.experiment.verdict import read_grid
from ckv_core.methods.parameters import Budget, Unit
from ckv_core.records.events import RunResult
from ckv_core.records.outcomes import tally
from ckv_core.records.run_request import Point
from ckv_core.records.variants import VariantSpec, spec_without

_CLOSE = 2.0  # a budget that keeps and the next below it are near each other up to this factor


def next_of_run(result: RunResult) -> str:
    """The next step after one sample: further budgets, or more samples if methods differ at one."""
    counts, grid = tally(result.variants), read_grid(result)
    states = {state for line in grid.lines for state in line.states}
    is_lost_anyway = counts.by_answer and counts.full not in (None, "answered")
    if is_lost_anyway or not states or "cut" in states or result.prompt is None:
        return ""
    if len(grid.budgets) == 1 and len(states) == 2:
        kept = listed([line.name for line in grid.lines if line.smallest == 0])
        return f"test {kept} on more samples: ckv run FILE.yaml (docs/how-to/your_data.md)."
    keep = min((line.smallest for line in grid.lines if line.smallest is not None), default=None)
    specs = [spec_without(line.first.variant.spec, "budget") for line in grid.lines]
    found = _border(grid.budgets, keep, specs, result.prompt.compressed_tokens, 4)
    return f"run it again with --budget {','.join(found)}." if found else ""


def next_of_samples(reading: Reading, file: str) -> str:
    """The next step after many samples: more of them, another budget, or `ckv plan`."""
    study, decision, results = reading.study, reading.decision, reading.results
    is_weak = decision.full is None or decision.full.mean < LEAST_FULL
    is_open = len(results) < len(reading.samples) * len(study.points())
    first = decision.methods[0]
    if is_weak or is_open or study.read_once or first.outcome == "unmeasured":
        return ""
    written = [*first.points]
    budgets, at = [Budget.parse(each) for each in written], written.index(first.budget)
    keep = at if first.outcome == "keeps" else None
    tested = first.points[written[at - 1 if keep else at]]
    if tested.state == "undecided":
        more = counted(max(1, (tested.needed or 0) - decision.n), "sample")
        return f"add about {more} to {file} and run it again." if tested.needed else ""
    size = min((each.prompt_tokens for each in results if each.prompt_tokens), default=0)
    found = _border(budgets, keep, reading.candidates, size, 1)
    if found and not (keep and budgets[at].amount <= _CLOSE * budgets[at - 1].amount):
        return f"add {found[0]} to budgets in {file} and run it again."
    if keep is None:
        return ""
    spec = Point(first.variant, first.budget).spec
    plan = f"ckv plan --model {study.model} --memory 80GiB --prompt {size} --variant {spec}"
    return f"{plan} computes how many requests fit."


def between(low: float, high: float, unit: Unit, count: int = 4) -> list[str]:
    """So many budgets between two, as they are written."""
    step = (high - low) / (count + 1)
    digits = 0 if step >= 1 or unit == "tokens" else 1
    found = {round(low + step * at, digits) for at in range(1, count + 1)} - {low, high}
    return [str(Budget(amount, unit)) for amount in sorted(found)]


def _border(
    budgets: Sequence[Budget], keep: int | None, specs: Iterable[str], tokens: int, count: int
) -> list[str]:
    """Budgets below the smallest that keeps, at `keep`, or above all where none does.

    Those that no prompt of so many tokens takes are left out.
    """
    *_, last = budgets
    low = last.amount if keep is None else budgets[keep - 1].amount if keep else 0.0
    most = 100.0 if last.unit == "percent" else 2 * last.amount
    if len({each.unit for each in budgets}) > 1:
        return []

    def fits(budget: str) -> bool:
        try:
            for spec in specs:
                VariantSpec.parse(Point(spec, budget).spec).check_prompt(tokens, 0)
        except ConfigError:
            return False
        return True

    high = most if keep is None else budgets[keep].amount
    return [*filter(fits, between(low, high, last.unit, count))]
