"""Query-aware beside query-agnostic methods: which is which, and what stands above both.

Whatever ranks variants takes its head and the marks of its rows from here.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ckv_core.methods import METHODS
from ckv_core.results.events import RunResult

_MIXED = (
    "Two regimes: query-aware methods choose by the queries of the prompt's end, a question there "
    "included, query-agnostic ones do not"
)


@dataclass(frozen=True, slots=True)
class Regimes:
    """What is to be said of variants that stand beside one another.

    Attributes:
        head: a sentence above them; empty where they are all of one kind.
        marks: of each variant, in their order; all empty where the head is.
    """

    head: str
    marks: tuple[str, ...]


def regime_named(name: str) -> str:
    """`query-aware` or `query-agnostic`; empty of an unknown method, and of one without scores."""
    return next((method.regime for method in METHODS if method.name == name), "")


def regimes_of(methods: Sequence[str], scenarios: Collection[str]) -> Regimes:
    """Of methods by name, run on prompts of these scenarios.

    Nothing is said while it is not known what was compressed.
    """
    marks = tuple(map(regime_named, methods))
    if not scenarios or len({*marks} - {""}) < 2:
        return Regimes("", ("",) * len(marks))
    if set(scenarios) == {"context-only"}:
        fair = "; here the context alone was compressed, before the question came."
    else:
        fair = ". They are compared fairly where the context only is compressed."
    return Regimes(_MIXED + fair, marks)


def run_regimes(*results: RunResult) -> Regimes:
    """Of all variants of one run or of several."""
    methods = [variant.method for result in results for variant in result.variants]
    scenarios = {result.prompt.scenario for result in results if result.prompt}
    return regimes_of(methods, scenarios)


def marked_name(name: str, mark: str) -> str:
    """A name where nothing else can stand beside it, as in a chart or a line of text."""
    return f"{name}, {mark}" if mark else name
