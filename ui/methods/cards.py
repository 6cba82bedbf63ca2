"""Each method by class, and what a server can do with it: HTML out of the declarations."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ckv_core.base.percent import percent
from ckv_core.experiment.serving import FEATURES, Answer, served
from ckv_core.methods import METHODS, PARAMETERS, SELECTOR_PARAMETERS, SELECTORS, Method
from ckv_core.methods.parameters import Parameter
from ckv_core.records.variants import VariantSpec
from ui.compare.offers import by_class, placeholder
from ui.looks.theme import ASSETS

METHODS_PACKAGE = "ckv_core.methods"
ARXIV = re.compile(r"arXiv:([\d.]+\d)")
# MathML by scripts/render_formulas.mjs, which browsers draw without a script.
FORMULAS: dict[str, str] = json.loads((ASSETS / "formulas.json").read_text("utf-8"))
RECORDED: dict[str, Any] = json.loads((ASSETS / "kept_figures.json").read_text("utf-8"))
FIRST_SHARE = "10"  # percent of the entries
# How a verdict is drawn: as the outcomes of answers are.
LOOKS = {"yes": "answered", "if": "cut", "no": "missed"}
PARAMETER_HEADS = ("Parameter", "paper", "kvpress", "Used by", "Meaning")
CODE = re.compile(r"`([^`]+)`")
_MIB = 2**20


def methods_list() -> str:
    """HTML: a section for each class, a line for each method that opens; then the servers."""
    beside = METHODS.get(RECORDED["beside"])
    methods = _drawn(
        "methods.html",
        classes=list(by_class(METHODS)),
        record=RECORDED,
        beside=beside,
        bars=len(RECORDED["methods"][beside.name]["kept"][FIRST_SHARE]["bars"]) // 2,
        mentions=[round(first / RECORDED["tokens"], 4) for first, _ in RECORDED["mentions"]],
        first_share=FIRST_SHARE,
        formulas=FORMULAS,
        kept_of=_kept,
        facts_of=method_facts,
    )
    return methods + _serving_table()


def _serving_table() -> str:
    """HTML: methods that a server can do the same with, in a row; each cell with its reason."""
    groups: dict[tuple[tuple[str, Answer], ...], list[str]] = {}
    for method in METHODS:
        answers = served(VariantSpec.parse(method.name))
        groups.setdefault(tuple(answers.items()), []).append(method.label)
    reasons = sorted(
        {(key, reason) for answers in groups for key, (_, reason) in answers},
        key=lambda pair: ([*FEATURES].index(pair[0]), pair[1]),
    )
    rows = [(labels, dict(answers)) for answers, labels in groups.items()]
    return _drawn("serving.html", features=FEATURES, groups=rows, reasons=reasons, looks=LOOKS)


def parameters_table() -> str:
    """HTML with a row per parameter; a phone shows it as cards, each cell with its head before."""
    return _drawn("parameters.html", heads=PARAMETER_HEADS, rows=parameter_rows())


def parameter_rows() -> list[tuple[str, ...]]:
    """A row per parameter with a cell per head; the documents have the same."""
    rows = []
    for parameter in PARAMETERS.values():
        is_named = all(re.search(rf"\b{word}\b", parameter.help) for word in parameter.choices)
        words = "" if is_named else f" One of {', '.join(parameter.choices)}."
        # What it is under a preset, and for methods that have their own default.
        defaults = [
            preset if parameter.name == "preset" else placeholder(parameter, preset)
            for preset in PARAMETER_HEADS[1:3]
        ]
        help_text = parameter.help + words
        rows.append((f"`{parameter.name}`", *defaults, _users(parameter.name), help_text))
    return rows


def _users(parameter: str) -> str:
    evicting = [method for method in METHODS if method.evicts]
    readers = [method for method in evicting if parameter in method.parameters() | method.options()]
    names = [method.label for method in readers]
    plain = names if len(names) < len(evicting) else ["every method that evicts"]
    return ", ".join([*plain, *(["CriticalKV"] if parameter in SELECTOR_PARAMETERS else [])])


def _drawn(template: str, **values: Any) -> str:
    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    pages.filters["marked"] = _marked
    return pages.get_template(template).render(values)


def _marked(text: Any) -> Markup:
    """Escaped, with words in backquotes as code, and papers as links."""
    coded = CODE.sub(r"<code>\1</code>", str(escape(text)))
    link = r'<a class="ckv-link" href="https://arxiv.org/abs/\1">\g<0></a>'
    return Markup(ARXIV.sub(link, coded))  # noqa: S704 - every part of it is escaped


def _notes(method: Method) -> str:
    """What its file says after the first line, or that of its own part: where codes disagree."""
    parts = (method.selector, method.budget_rule, method.scorer)
    files = (f"{METHODS_PACKAGE}.{method.name}", *(type(part).__module__ for part in parts))
    shared = f"{METHODS_PACKAGE}.parts."
    own = next(file for file in files if file in sys.modules and not file.startswith(shared))
    _, _, notes = (sys.modules[own].__doc__ or "").partition("\n\n")
    return " ".join(notes.split())


def method_facts(method: Method) -> Iterator[tuple[str, str]]:
    """(what, text with backquotes) of a method at its defaults."""
    yield "Regime", method.regime
    if method.evicts:
        variant = VariantSpec.parse(method.name)
        yield "Always kept", variant.protected_text or "nothing"
        yield "Parameters", ", ".join(map(_parameter_text, _own_parameters(method)))
        yield "Also takes", ", ".join(f"`{key}`" for key in method.options())
        yield "CriticalKV", _critical_text(method)
        yield "Needs", ", ".join(_needs(variant)) or "the cache alone"
        yield "kvpress", f"`{method.press.written}`" if method.press else ""
    yield "Notes", _notes(method)
    yield "Extra memory", _cost_text(method)
    yield "Source", method.source


def _own_parameters(method: Method) -> list[Parameter]:
    return [
        parameter
        for name, parameter in method.parameters().items()
        if name not in ("budget", "preset")
    ]


def _parameter_text(parameter: Parameter) -> str:
    other = (
        "" if parameter.kvpress in (None, parameter.default) else f" (kvpress {parameter.kvpress})"
    )
    return f"`{parameter.name}={parameter.default}`{other}"


def _critical_text(method: Method) -> str:
    """The forms that can follow, with what those need besides; or why none can."""
    forms = [f"`{method.name}+{part.name}`" for part in method.selectors[1:]]
    if not forms:
        reasons = dict.fromkeys(method.unfit(part) for part in SELECTORS.values())
        return f"no: it {' and '.join(reasons)}"
    norms = any(part.needs_norms for part in method.selectors[1:])
    return ", ".join(forms) + ("; these also need value norms" if norms else "")


def _needs(variant: VariantSpec) -> Iterator[str]:
    """What it takes beside the cache; a prompt's variants share the first three."""
    if variant.queries:
        count = variant.queries
        yield (
            f"attention of the last {count} queries" if count > 1 else "the last query's attention"
        )
    gathered = dict.fromkeys(observer.kind for observer in variant.observers)
    yield from (f"{kind} while the prompt is read" for kind in gathered)
    yield from (f"{passes.kind}, in further passes over it" for passes in variant.passes)
    if variant.norm_orders:
        yield "value norms"
    if variant.tables:
        yield f"the head table `{variant.params['table']}`"
    rule = variant.method.budget_rule
    if rule is not None and rule.looks_at != "nothing":
        whole = rule.looks_at == "all layers"
        yield f"the scores of {'all layers' if whole else 'a whole layer'} at once"
    if variant.policy is not None:
        read = "attention of every generated token, " if variant.policy.needs_probabilities else ""
        yield f"{read}work after every step"


def _cost_text(method: Method) -> str:
    """The memory that it took for that text."""
    recorded = RECORDED["methods"].get(method.name)
    if not method.evicts:
        return "none: savings are measured against this cache"
    if recorded is None:
        return ""  # another package's
    held, work = (recorded[key] / _MIB for key in ("held", "work"))
    return (
        f"{held:.1f} MiB gathered and kept for it, at most {work:.1f} MiB more while it chooses "
        f"({RECORDED['tokens']:,} tokens, {RECORDED['model']}, float32)"
    )


def _kept(method: Method) -> dict[str, dict[str, str]]:
    """The bars of its figure, which assets/scripts/pages/methods.js draws, by budget."""
    kept = RECORDED["methods"][method.name]["kept"]
    return {
        share: {"bars": each["bars"], "message": _caption(method, share, each)}
        for share, each in kept.items()
    }


def _caption(method: Method, share: str, kept: Mapping[str, Any]) -> str:
    heights = bytes.fromhex(kept["bars"])
    tenth, total = len(heights) // 10, max(1, sum(heights))
    first, last = sum(heights[:tenth]) / total, sum(heights[-tenth:]) / total
    entries = RECORDED["tokens"] * int(share) // 100
    beside = METHODS.get(RECORDED["beside"])
    common = (
        ""
        if method.name == beside.name
        else f"{percent(kept['same'])} of its entries are {beside.label}'s too; "
    )
    return (
        f"{method.label} at {share} % ({entries} entries per KV head): {common}it keeps "
        f"{percent(kept['answer'])} of the entries that mention the answer. Of what it "
        f"keeps, {percent(first)} lies in the first tenth of the prompt, {percent(last)} in "
        f"the last."
    )
