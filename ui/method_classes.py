"""Classes of methods, by what readers compare fairly; read off the registry. Pure: no Gradio."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ckv_core.events import RunResult
from ckv_core.methods import METHODS, Method


@dataclass(frozen=True, slots=True)
class MethodClass:
    """One class: an id for links, its heading, and a sentence."""

    key: str
    name: str
    note: str


FULL = MethodClass("full", "Reference", "Nothing is evicted.")
GENERATING = MethodClass(
    "generating",
    "Evict while generating",
    "Hold their budget at every step: generated entries push older ones out.",
)
BY_REGIME = {
    "query-aware": MethodClass(
        "query-aware",
        "Query-aware",
        "Look at the queries of the prompt's end: a question that stands there chooses what is "
        "kept.",
    ),
    "query-agnostic": MethodClass(
        "query-agnostic",
        "Query-agnostic",
        "Keep the same whatever is asked, so one cache serves many questions.",
    ),
}
_MIXED = (
    "Two regimes: query-aware methods choose by the queries of the prompt's end, a question there "
    "included, query-agnostic ones do not"
)
CLASSES = (FULL, *BY_REGIME.values(), GENERATING)


def class_of(method: Method) -> MethodClass:
    """The one class under which a method is listed."""
    return GENERATING if method.policy else BY_REGIME.get(method.regime, FULL)


def by_class(methods: Iterable[Method]) -> Iterator[tuple[MethodClass, list[Method]]]:
    """The classes that have methods, each with those in their own order."""
    given = list(methods)
    for each in CLASSES:
        if members := [method for method in given if class_of(method) is each]:
            yield each, members


def regime_named(name: str) -> str:
    """`query-aware` or `query-agnostic`; empty of an unknown method, and of one without scores."""
    return next((method.regime for method in METHODS if method.name == name), "")


def mixed_regimes(result: RunResult) -> str:
    """What stands above a table that ranks query-aware beside query-agnostic methods.

    Empty where it ranks only one kind, or where it is not known yet what was compressed.
    """
    regimes = {regime_named(variant.method) for variant in result.variants} - {""}
    if result.prompt is None or len(regimes) < 2:
        return ""
    if result.prompt.scenario == "context-only":
        return f"{_MIXED}; here the context alone was compressed, before the question came."
    return f"{_MIXED}. They are compared fairly where the context only is compressed."
