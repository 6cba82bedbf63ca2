"""Query-aware beside query-agnostic methods: which is which, and what stands above both.

Whatever ranks variants takes its head and the marks of its rows from here.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ckv_core.methods import METHODS
from ckv_core.records.events import RunResult

_KNOWN = (
    "Query-aware methods saw the question while choosing, query-agnostic ones did not. For a fair "
    "comparison choose the scenario context-only."
)
_UNKNOWN = (
    "Query-aware methods choose with the last queries of the context, query-agnostic ones without. "
    "No method saw the question."
)


@dataclass(frozen=True, slots=True)
class Regimes:
    """Which of several compared variants saw the question.

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

    Both are empty while it is not known what was compressed.
    """
    marks = tuple(map(regime_named, methods))
    if not scenarios or len({*marks} - {""}) < 2:
        return Regimes("", ("",) * len(marks))
    return Regimes(_UNKNOWN if set(scenarios) == {"context-only"} else _KNOWN, marks)


def run_regimes(*results: RunResult) -> Regimes:
    """Of all variants of one run or of several."""
    methods = [variant.method for result in results for variant in result.variants]
    scenarios = {result.prompt.scenario for result in results if result.prompt}
    return regimes_of(methods, scenarios)


def marked_name(name: str, mark: str) -> str:
    """A name where nothing else can stand beside it, as in a chart or a line of text."""
    return f"{name}: {mark}" if mark else name
