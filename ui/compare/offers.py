"""The variants that forms offer, as a list and by class. Pure: no Gradio, no torch."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ckv_core.methods import METHODS, PARAMETERS, POLICIES, Method
from ckv_core.methods.base import own_defaults
from ckv_core.methods.parameters import Parameter
from ckv_core.records.run_request import FULL
from ckv_core.records.variants import VariantSpec
from ui.looks.palette import look_of

DEFAULT_VARIANTS = (
    "full",
    "streaming_llm",
    "snapkv",
    "snapkv+critical:stage2=raw",
    "snapkv+critical:stage2=pooled",
    "adakv",
)


# What the form has beside the full cache at first.
FIRST_CHIPS = ("snapkv", "snapkv+critical:stage2=raw", "adakv", "kvzip")


@cache
def variant_choices() -> dict[str, VariantSpec]:
    """Every method by its SPEC, without and with each CriticalKV where that applies."""
    return {spec: VariantSpec.parse(spec) for each in METHODS for spec in _specs(each)}


def placeholder(parameter: Parameter, preset: str) -> str:
    """The default, and those of methods that have their own; of a part only on request, off."""
    if parameter.name in POLICIES:
        return "off"
    labels: dict[object, list[str]] = {}
    for method, default in own_defaults(parameter.name).items():
        labels.setdefault(default, []).append(METHODS.get(method).label)
    own = [f"{', '.join(members)}: {default}" for default, members in labels.items()]
    return "; ".join([str(parameter.preset_value(preset)), *own])


@dataclass(frozen=True, slots=True)
class MethodClass:
    """One class: an id for links, its heading and a sentence."""

    key: str
    name: str
    note: str


CLASSES = (
    MethodClass("full", "Reference", "They evict nothing."),
    MethodClass(
        "query-aware",
        "Query-aware",
        "They use the end of the prompt (your question) to choose what to keep.",
    ),
    MethodClass(
        "query-agnostic",
        "Query-agnostic",
        "They do not look at the question, so one compressed cache serves many questions.",
    ),
    MethodClass(
        "generating",
        "Evict while generating",
        "They also evict while they generate, so that generated tokens stay inside the budget.",
    ),
)


def by_class(methods: Iterable[Method]) -> Iterator[tuple[MethodClass, list[Method]]]:
    """The classes that have methods, which readers compare fairly, each with those in order."""
    members: dict[str, list[Method]] = {}
    for method in methods:
        key = "generating" if method.goes_on else method.regime or "full"
        members.setdefault(key, []).append(method)
    return ((group, members[group.key]) for group in CLASSES if group.key in members)


def chips_offer() -> dict[str, Any]:
    """What MethodChips offers: the methods by class, and what every parameter means."""
    reference, *classes = by_class(each for each in METHODS if each.name != FULL)
    return {
        "full": look_of(FULL).value,
        "groups": [
            {"name": group.name, "note": group.note, "methods": list(map(_method_value, members))}
            for group, members in (*classes, reference)
        ],
        "parameters": {
            name: {"help": each.help, "choices": list(each.choices)}
            for name, each in PARAMETERS.items()
        },
    }


def _method_value(method: Method) -> dict[str, Any]:
    plain, *versions = map(_variant_value, _specs(method))
    selectors = {"": None} | {each.name: each for each in method.selectors[1:]}
    return plain | {
        "name": method.name,
        "summary": method.summary.replace("`", ""),
        "versions": versions,
        # By the word after a SPEC's '+': the parameters that it takes.
        "takes": {word: _taken(method.parameters(each)) for word, each in selectors.items()},
        "options": _taken(method.options()),
        # What the search looks through beside the label.
        "words": f"{method.name} {method.regime} {method.summary} {method.source}",
    }


def _taken(parameters: Mapping[str, Parameter]) -> list[list[str]]:
    """Names with the defaults of both presets; the version's is a choice of its own."""
    return [
        [name, str(each.preset_value("paper")), str(each.preset_value("kvpress"))]
        for name, each in parameters.items()
        if name != "stage2"
    ]


def _variant_value(spec: str) -> dict[str, Any]:
    variant = variant_choices()[spec]
    word = variant.selector.reading_of(variant.params).capitalize()
    return {"spec": spec, "label": variant.label, "word": word, "look": look_of(spec).value}


def _specs(method: Method) -> list[str]:
    """The method alone, and with each selector that can follow it as that is offered."""
    named = {f"{method.name}+{each.name}": each.offers for each in method.selectors[1:]}
    endings = [f"{name}:{end}" if end else name for name, ends in named.items() for end in ends]
    return [method.name, *endings]
