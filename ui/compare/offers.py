"""What the forms offer: variants as a list and by class, and models. Pure: no Gradio, no torch."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import psutil

from ckv_core.methods import METHODS, PARAMETERS, Method
from ckv_core.methods.parameters import Parameter, ParameterValue
from ckv_core.models.catalog import SUGGESTED
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


@cache
def variant_choices() -> dict[str, VariantSpec]:
    """Every method by its SPEC, without and with each CriticalKV where that applies."""
    return {spec: VariantSpec.parse(spec) for each in METHODS for spec in _specs(each)}


def offered(spec: str, defaults: Mapping[str, str] | None = None) -> str:
    """The SPEC in the list that means the same; empty for none.

    One that leaves out which reading of CriticalKV it is means the preset's.
    """
    given = defaults or {}
    reading = given.get("stage2", shown_default(PARAMETERS["stage2"], given.get("preset", "")))
    same = (text for text in (spec, f"{spec}:stage2={reading}") if text in variant_choices())
    return next(same, "")


def shown_default(parameter: Parameter, preset: str) -> ParameterValue:
    """What a parameter is when it is left alone under a preset."""
    if preset == "kvpress" and parameter.kvpress is not None:
        return parameter.kvpress
    return parameter.default


@dataclass(frozen=True, slots=True)
class MethodClass:
    """One class: an id for links, its heading, and a sentence."""

    key: str
    name: str
    note: str


CLASSES = (
    MethodClass("full", "Reference", "Nothing is evicted."),
    MethodClass(
        "query-aware",
        "Query-aware",
        "Use the end of the prompt, with your question, to choose what to keep.",
    ),
    MethodClass(
        "query-agnostic",
        "Query-agnostic",
        "Ignore the question: one compressed cache serves many questions.",
    ),
    MethodClass(
        "generating",
        "Evict while generating",
        "Hold their budget at every step: generated entries push older ones out.",
    ),
)


def by_class(methods: Iterable[Method]) -> Iterator[tuple[MethodClass, list[Method]]]:
    """The classes that have methods, which readers compare fairly, each with those in order."""
    members: dict[str, list[Method]] = {}
    for method in methods:
        key = "generating" if method.goes_on else method.regime or "full"
        members.setdefault(key, []).append(method)
    return ((group, members[group.key]) for group in CLASSES if group.key in members)


def picker_offer(
    label: str, info: str, usual: Sequence[str], *, with_full: bool = True
) -> dict[str, Any]:
    """What a VariantPicker offers; one button chooses the SPECs in `usual`."""
    methods = [method for method in METHODS if with_full or method.evicts]
    return {
        "label": label,
        "info": info,
        "usual": list(usual),
        "groups": [
            {"name": group.name, "note": group.note, "methods": list(map(_method_value, members))}
            for group, members in by_class(methods)
        ],
    }


def _method_value(method: Method) -> dict[str, Any]:
    """A method with its variants; those of a selector stand together under its name."""
    plain, *others = (_variant_value(spec) for spec in _specs(method))
    families: dict[str, list[dict[str, Any]]] = {}
    for variant in others:
        families.setdefault(variant["family"], []).append(variant)
    return {
        "plain": plain,
        "families": [{"name": name, "variants": held} for name, held in families.items()],
        # What the search looks through beside the labels.
        "words": f"{method.name} {method.regime} {method.summary} {method.source}",
    }


def _variant_value(spec: str) -> dict[str, Any]:
    variant = variant_choices()[spec]
    family, reading = variant.selector.label, variant.selector.reading_of(variant.params)
    words = {"spec": spec, "label": variant.label, "family": family, "short": reading or family}
    return words | {"look": look_of(spec).value}


def _specs(method: Method) -> list[str]:
    """The method alone, and with each selector that can follow it as that is offered."""
    named = {f"{method.name}+{each.name}": each.offers for each in method.selectors[1:]}
    endings = [f"{name}:{end}" if end else name for name, ends in named.items() for end in ends]
    return [method.name, *endings]


def models_value(ready: Collection[str]) -> dict[str, Any]:
    """Value of the ModelList component; `ready` names the models that are here already."""
    return {
        "memory": int(psutil.virtual_memory().total),
        "rows": [
            {
                "name": model.name,
                "parameters": model.parameters,
                "context": model.context,
                "license": model.license,
                "weights": model.weights_bytes,
                "token": model.token_bytes,
                "ready": model.name in ready,
            }
            for model in SUGGESTED
        ],
    }
