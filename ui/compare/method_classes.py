"""Classes of methods, by what readers compare fairly; read off the registry. Pure: no Gradio."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ckv_core.methods import Method


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
CLASSES = (FULL, *BY_REGIME.values(), GENERATING)


def class_of(method: Method) -> MethodClass:
    """The one class under which a method is listed."""
    return GENERATING if method.goes_on else BY_REGIME.get(method.regime, FULL)


def by_class(methods: Iterable[Method]) -> Iterator[tuple[MethodClass, list[Method]]]:
    """The classes that have methods, each with those in their own order."""
    given = list(methods)
    for each in CLASSES:
        if members := [method for method in given if class_of(method) is each]:
            yield each, members
