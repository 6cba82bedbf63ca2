"""Each method as a card, by class, with links to them: HTML out of the declarations. No Gradio."""

import html
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ckv_core.methods import METHODS, SELECTORS, Method
from ckv_core.methods.parameters import Parameter
from ckv_core.records.variants import VariantSpec
from ui.compare.offers import MethodClass, by_class
from ui.looks.theme import ASSETS

METHODS_PACKAGE = "ckv_core.methods"
ARXIV = re.compile(r"arXiv:([\d.]+\d)")
# MathML by scripts/render_formulas.mjs, which browsers draw without a script.
FORMULAS: dict[str, str] = json.loads((ASSETS / "formulas.json").read_text("utf-8"))
CODE = re.compile(r"`([^`]+)`")


def methods_list() -> str:
    """Links to all methods, then a section of cards for each class."""
    groups = list(by_class(METHODS))
    links = "".join(
        f"<li><b>{group.name}</b> {' '.join(map(_link, members))}</li>" for group, members in groups
    )
    sections = "".join(_section(group, members) for group, members in groups)
    jump = f'<nav aria-label="All methods"><ul class="ckv-jump">{links}</ul></nav>'
    return jump + figures_head() + sections


def marked(text: str) -> str:
    """Escaped, with words in backquotes as code, and papers as links."""
    coded = CODE.sub(r"<code>\1</code>", html.escape(text))
    link = r'<a class="ckv-link" href="https://arxiv.org/abs/\1">\g<0></a>'
    return ARXIV.sub(link, coded)


def _link(method: Method) -> str:
    return (
        f'<a class="ckv-link" href="methods#method-{method.name}">{html.escape(method.label)}</a>'
    )


def _section(group: MethodClass, members: list[Method]) -> str:
    cards = "".join(map(_card, members))
    return (
        f'<section class="section" aria-labelledby="class-{group.key}">'
        f'<h3 id="class-{group.key}">{group.name}</h3><p>{group.note}</p>'
        f'<div class="ckv-method-cards">{cards}</div></section>'
    )


def _card(method: Method) -> str:
    facts = "".join(
        f"<dt>{name}</dt><dd>{marked(text)}</dd>" for name, text in _facts(method) if text
    )
    return (
        f'<article class="ckv-method" id="method-{method.name}" tabindex="-1">'
        f"<h4>{html.escape(method.label)} <code>{method.name}</code></h4>"
        f"<p>{marked(method.summary)}</p>{_formula(method)}{kept_figure(method)}"
        f"<dl>{facts}</dl></article>"
    )


def _formula(method: Method) -> str:
    """Its score or its budgets; empty where none is written down."""
    drawn = FORMULAS.get(method.name)
    if drawn is None:
        return ""
    label = html.escape(f"Formula of {method.label}")
    return f'<div class="ckv-formula" role="group" aria-label="{label}" tabindex="0">{drawn}</div>'


def _notes(method: Method) -> str:
    """What its file says after the first line, or that of its scorer: where codes disagree."""
    module = sys.modules.get(f"{METHODS_PACKAGE}.{method.name}")
    module = module or sys.modules[type(method.scorer).__module__]
    _, _, notes = (module.__doc__ or "").partition("\n\n")
    return " ".join(notes.split())


def _facts(method: Method) -> Iterator[tuple[str, str]]:
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
    yield "Codes and cost", _notes(method)
    yield "Extra memory", cost_text(method)
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
    return ", ".join(forms) + ("; needs value norms besides" if norms else "")


def _needs(variant: VariantSpec) -> Iterator[str]:
    """What it takes beside the cache; a prompt's variants share the first three."""
    if variant.queries:
        count = variant.queries
        yield (
            f"attention of the last {count} queries" if count > 1 else "the last query's attention"
        )
    gathered = "gathered while the prompt is read"
    kinds = [(observer.kind, gathered) for observer in variant.observers]
    kinds += [(passes.kind, "in further passes over all of it") for passes in variant.passes]
    yield from (f"{kind}, {how}" for kind, how in kinds)
    if variant.selector.needs_norms:
        yield "value norms"
    rule = variant.method.budget_rule
    if rule is not None and rule.looks_at != "nothing":
        whole = rule.looks_at == "all layers"
        yield f"the scores of {'all layers' if whole else 'a whole layer'} before budgets are known"
    if variant.policy is not None:
        read = "attention of every generated token, " if variant.policy.needs_probabilities else ""
        yield f"{read}work after every step"


RECORDED: dict[str, Any] = json.loads((ASSETS / "kept_figures.json").read_text("utf-8"))
SHARES = (5, 10, 20, 50)
FIRST_SHARE = 10
_MIB = 2**20


def figures_head() -> str:
    """What the figures show, and the budget that all of them take."""
    record, slots = RECORDED, RECORDED["layers"] * RECORDED["kv_heads"]
    beside = METHODS.get(record["beside"]).label
    radios = "".join(
        f'<label><input type="radio" name="ckv-kept-share" value="{share}"'
        f"{' checked' if share == FIRST_SHARE else ''}> {share} %</label>"
        for share in SHARES
    )
    text = (
        f"Each figure is what the method kept of one text (n = 1): the example "
        f"“{record['title']}” of Compare, {record['tokens']:,} tokens with its question at the "
        f"end, read by {record['model']} in float32 and recorded. From left to right the prompt, "
        f"in parts of about {record['tokens'] / _bars():.0f} tokens; the height of a bar is the "
        f"share of the part's entries that is kept, over all {record['layers']} layers x "
        f"{record['kv_heads']} KV heads ({slots} slots a token). Above the line is the method, "
        f"below it {beside} at the same budget; ▼ are the mentions of its answer, "
        f"{record['answer']}."
    )
    return (
        f'<p class="ckv-kept-intro">{html.escape(text)}</p>'
        '<fieldset class="ckv-kept-budget"><legend>Budget of the figures</legend>'
        f"{radios}</fieldset>"
    )


def kept_figure(method: Method) -> str:
    """A figure that assets/scripts/pages/kept_figures.js draws; empty for what evicts nothing."""
    recorded = RECORDED["methods"].get(method.name)
    if recorded is None:
        return ""
    beside = "" if method.name == RECORDED["beside"] else RECORDED["beside"]
    data = {
        share: {"bars": kept["bars"], "message": _caption(method, share, kept)}
        for share, kept in recorded["kept"].items()
    }
    mentions = [round(first / RECORDED["tokens"], 4) for first, _ in RECORDED["mentions"]]
    return (
        f'<figure class="ckv-kept" data-kept="{html.escape(json.dumps(data))}" '
        f'data-mentions="{mentions}" data-beside="{beside}" '
        f'data-label="{html.escape(method.label)}">'
        f"<figcaption>{html.escape(data[str(FIRST_SHARE)]['message'])}</figcaption></figure>"
    )


def cost_text(method: Method) -> str:
    """The memory that it took for that text."""
    recorded = RECORDED["methods"].get(method.name)
    if not method.evicts:
        return "nothing besides: its cache is what savings are measured against"
    if recorded is None:
        return ""  # another package's
    held, work = (recorded[key] / _MIB for key in ("held", "work"))
    return (
        f"{held:.1f} MiB gathered and kept for it, at most {work:.1f} MiB more while it chooses "
        f"({RECORDED['tokens']:,} tokens, {RECORDED['model']}, float32)"
    )


def _caption(method: Method, share: str, kept: Mapping[str, Any]) -> str:
    heights = bytes.fromhex(kept["bars"])
    tenth, total = len(heights) // 10, max(1, sum(heights))
    first, last = sum(heights[:tenth]) / total, sum(heights[-tenth:]) / total
    entries = RECORDED["tokens"] * int(share) // 100
    beside = METHODS.get(RECORDED["beside"])
    common = (
        ""
        if method.name == beside.name
        else f"{kept['same']:.0%} of its entries are {beside.label}'s too; "
    )
    return (
        f"{method.label} at {share} % ({entries} entries per KV head): {common}it keeps "
        f"{kept['answer']:.0%} of the entries of the answer's mentions; {first:.0%} of what it "
        f"keeps lies in the first tenth of the prompt, {last:.0%} in the last."
    )


def _bars() -> int:
    kept = RECORDED["methods"][RECORDED["beside"]]["kept"]
    return len(kept[str(FIRST_SHARE)]["bars"]) // 2
