"""The advanced editor: a variant out of parts as they are declared. Pure: no Gradio, no torch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ckv_core.errors import CkvError, ConfigError
from ckv_core.methods import METHODS, POLICIES, SELECTORS, STORES, Method
from ckv_core.methods.base import OWN_PART, budget_rules, composing_parameters, plain_selectors
from ckv_core.methods.parameters import Parameter
from ckv_core.methods.parts.base import Part
from ckv_core.methods.parts.layout import LAYOUT
from ckv_core.methods.parts.store import PLAIN
from ckv_core.request.variants import NAME, VariantSpec

FIRST = "snapkv"  # what the editor begins with
_UNSET = ("", OWN_PART, PLAIN.name)
_HELP = {
    "method": "Whose scores rank the entries; the other parts are its own until they are changed.",
    "selector": "Whether part of each budget is chosen by attention times the value's size.",
    "policy": "What evicts while it generates.",
    "store": "How what is kept is held.",
}


def composed_value(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Value of a VariantEditor: its fields, the SPEC, and in one sentence what it is or lacks.

    `asked` is a client's, which may send anything or nothing yet: `parts` by key, `values` of
    parameters by name, and `name`.
    """
    parts, values, name = _texts(asked.get("parts")), _texts(asked.get("values")), asked.get(NAME)
    method = _method(parts)
    value: dict[str, Any] = {"parts": _part_fields(method, parts), "spec": "", "tone": "error"}
    try:
        method = method.composed({key: parts.get(key) or OWN_PART for key in ("rule", "select")})
        selector = SELECTORS.get(parts.get("selector", ""))
        known = [*method.parameters(selector).values(), *_optional(method, parts)]
        value |= {"parameters": _parameter_fields(known)}
        value |= {"spec": written_spec(parts, values, str(name or ""), known)}
        spec = VariantSpec.parse(value["spec"])
        more, tone = ("", "good") if spec.own_name else (" Give it a name, then add it.", "")
        return value | {"told": f"It fits: {', '.join(_said(spec))}.{more}", "tone": tone}
    except CkvError as error:
        shown = {"parameters": _parameter_fields(method.parameters().values())}
        return shown | value | {"told": str(error)}


def written_spec(
    parts: Mapping[str, str], values: Mapping[str, str], name: str, known: Sequence[Parameter]
) -> str:
    """The SPEC of these parts, with the values that were typed for parameters that it has."""
    pairs = {key: parts.get(key, "") for key in ("rule", "select", "store")}
    policy = POLICIES.get(parts.get("policy", ""))
    asked = {each.name: str(each.default) for each in policy.parameters[:1]} if policy else {}
    typed = {each.name: values.get(each.name, "") for each in known}
    typed = {key: text for key, text in (asked | typed).items() if text or key in asked}
    pairs |= {key: text or asked[key] for key, text in typed.items()} | {NAME: name}
    if wrong := [text for text in pairs.values() if "," in text]:
        raise ConfigError(f"{wrong[0][:60]!r} has a comma; a value and a name have none.")
    head = _method(parts).name
    head += f"+{parts['selector']}" if parts.get("selector") else ""
    tail = ",".join(f"{key}={text}" for key, text in pairs.items() if text not in _UNSET)
    return f"{head}:{tail}" if tail else head


def with_own(ticked: Sequence[str], asked: Mapping[str, Any]) -> list[str]:
    """The chosen variants and the one in the editor; ConfigError if that cannot be one of them."""
    value = composed_value(asked)
    if value["tone"] != "good":
        raise ConfigError(value["told"])
    spec = VariantSpec.parse(value["spec"])
    for text in ticked:
        other = VariantSpec.parse(text)
        if other.settings() == spec.settings():
            raise ConfigError(f"{other.label} is the same variant and is there already.")
        if other.label == spec.label:
            raise ConfigError(f"{spec.label!r} is taken by another variant; change the name.")
    return [*ticked, spec.spec]


def _method(parts: Mapping[str, str]) -> Method:
    evicting = {method.name: method for method in METHODS if method.evicts}
    return evicting.get(parts.get("method", ""), evicting[FIRST])


def _texts(given: object) -> dict[str, str]:
    pairs = given.items() if isinstance(given, dict) else ()
    return {str(key): text.strip() for key, text in pairs if isinstance(text, str)}


def _optional(method: Method, parts: Mapping[str, str]) -> Iterable[Parameter]:
    """Parameters of what can be asked for besides, of parts that are."""
    options = method.options()
    asked = (STORES.get(parts.get("store", "")), POLICIES.get(parts.get("policy", "")))
    wanted = {each.name for part in asked if part for each in part.parameters} | {LAYOUT.name}
    return (parameter for name, parameter in options.items() if name in wanted)


def _said(spec: VariantSpec) -> list[str]:
    rule, policy = spec.method.budget_rule, spec.policy
    told = [f"scores {spec.scorer.name}", f"budgets {rule.name if rule else 'none'}"]
    told += [f"selector {spec.selector.name}"]
    told += [f"while generating {policy.name}"] if policy else []
    return [*told, f"store {spec.store.name}"]


def _part_fields(method: Method, parts: Mapping[str, str]) -> list[dict[str, Any]]:
    """A list for each part, with what is registered and what each does."""
    rule, select = composing_parameters()
    own = method.own_parts
    methods = [_option(each.name, each.label, each.summary) for each in METHODS if each.evicts]
    critical = [_option(key, part.label, _sentence(part)) for key, part in SELECTORS.items()]
    keep = "the method's own"
    rules, selectors = f"{keep} ({own['rule']})", f"{keep} ({own['select']})"
    lists = (
        ("method", "Scores of", _HELP["method"], methods),
        ("rule", "Budget rule", rule.help, _others(budget_rules(), rules)),
        ("select", "Selector", select.help, _others(plain_selectors(), selectors)),
        ("selector", "CriticalKV", _HELP["selector"], [_option("", "no"), *critical]),
        ("policy", "Policy", _HELP["policy"], _others(POLICIES, keep)),
        ("store", "Store", _HELP["store"], _others(STORES, "the model's own type")),
    )
    return [
        {
            "key": key,
            "label": label,
            "help": told,
            "options": options,
            "chosen": parts.get(key, method.name if key == "method" else ""),
        }
        for key, label, told, options in lists
    ]


def _others(parts: Mapping[str, Part], own: str) -> list[dict[str, str]]:
    options = [_option(key, part.name, _sentence(part)) for key, part in parts.items()]
    return [_option("", own), *options]


def _option(word: str, label: str, told: str = "") -> dict[str, str]:
    return {"word": word, "label": label, "told": told}


def _sentence(part: Part) -> str:
    """What it does, as its declaration begins."""
    return (type(part).__doc__ or "").partition("\n")[0]


def _parameter_fields(parameters: Iterable[Parameter]) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "help": each.help,
            "range": f"{each.range[:1].upper()}{each.range[1:]}." if each.range else "",
            "default": str(each.default),
            "choices": list(each.choices),
        }
        for each in parameters
    ]
