"""Writes docs/reference/ and the README's list of methods: `python -m scripts.reference_docs`.

Whatever is declared in code is written from there; `tests/test_docs.py` compares it with the tree.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from ckv_core.experiment.serving import FEATURES, served
from ckv_core.methods import METHODS, POLICIES, SELECTORS, STORES, Method
from ckv_core.records.metrics import METRICS, Metric
from ckv_core.records.variants import VariantSpec
from cli.main import commands
from scripts.schema_doc import schema_markdown
from ui.api import openapi
from ui.api.endpoints import Api, endpoints
from ui.compare.offers import by_class
from ui.methods.cards import ARXIV, method_facts, parameter_rows

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
README = ROOT / "README.md"
DEFINITIONS = REFERENCE / "definitions.md"
BEGIN = "<!-- begin: written by python -m scripts.reference_docs -->"
END = "<!-- end -->"
# The TeX that the Methods page's MathML is rendered from.
FORMULAS: dict[str, str] = json.loads((ROOT / "ui/methods/formulas.json").read_text("utf-8"))
_MADE = "Written by `python -m scripts.reference_docs`; do not edit by hand.\n"
_AXES = {
    "head": "L x H heads",
    "kv_head": "L x G KV heads",
    "layer": "L layers",
    "model": "one",
    "variant": "one",
    "step": "positions",
}


def methods_page() -> str:
    """Return each method with its formula and what it needs; then parts for any method."""
    lines = ["# Methods", "", _MADE]
    lines += [
        "A method is a scorer, a budget rule and a selector; some also evict while they generate.",
        "[Parameters](parameters.md) explains every key. In the formulas a KV head keeps the *b*",
        "entries of largest *s*; *a* is attention, *W* the observation window.",
        "*Needs*: what a method takes beside the cache. A missing line means nothing.",
        "",
    ]
    shown: set[str] = set()
    for group, members in by_class(METHODS):
        lines += [f"## {group.name}", "", group.note, ""]
        lines += [line for method in members for line in _method_section(method, shown)]
    lines += ["## CriticalKV", ""]
    for name, selector in SELECTORS.items():
        after = ", ".join(f"`{each.name}`" for each in METHODS if selector in each.selectors[1:])
        lines += [f"- `+{name}`: {_first_sentence(selector)} It can follow {after}."]
    lines += ["", "## Parts for any method", ""]
    for key, parts in (("store", STORES), ("", POLICIES)):
        for name, part in parts.items():
            lines.append(f"- `{f'{key}={name}' if key else f'{name}=N'}`: {_first_sentence(part)}")
    return "\n".join([*lines, "", *_serving_section()]) + "\n"


def _method_section(method: Method, shown: set[str]) -> Iterator[str]:
    """A method's facts, but for what the page says above: a family's notes and formula, once."""
    yield from (f"### {method.name}", "", f"**{method.label}.** {method.summary}", "")
    formula = FORMULAS.get(method.name, "")
    facts = dict(method_facts(method))
    notes = facts.get("Notes", "")
    if formula and formula not in shown:
        yield from ("```math", formula, "```", "")
    if notes not in shown:
        yield from (notes, "")
    shown |= {formula, notes}
    for name in ("Always kept", "Parameters", "Needs", "kvpress", "Source"):
        if (text := facts.get(name, "")) not in ("", "nothing", "the cache alone"):
            linked = ARXIV.sub(r"[\g<0>](https://arxiv.org/abs/\1)", text)
            yield f"- {name}: {linked}"
    yield ""


def _serving_section() -> Iterator[str]:
    yield from ("## What a server can do with each", "")
    yield from (
        "*If*: under a condition; the app's page *Methods* has the reason of each answer.",
        "",
    )
    groups: dict[tuple[str, ...], list[str]] = {}
    for each in METHODS:
        answers = tuple(answer for answer, _ in served(VariantSpec.parse(each.name)).values())
        groups.setdefault(answers, []).append(f"`{each.name}`")
    rows = [(", ".join(names), *answers) for answers, names in groups.items()]
    yield from _table(("methods", *(feature.label for feature in FEATURES.values())), rows)


def _first_sentence(part: object) -> str:
    return " ".join((type(part).__doc__ or "").partition("\n\n")[0].split())


def parameters_page() -> str:
    """Return every SPEC key with its defaults, where kvpress has another, and what it means."""
    lines = [
        "# Parameters",
        "",
        _MADE,
        "`METHOD[+critical][:key=value,...]`: `snapkv:budget=128`, `adakv+critical:alpha=0.5`.",
        "`preset=kvpress` has the defaults of kvpress 0.5.5; a key given beside it wins.",
        "[Methods](methods.md) lists the keys of each method. In brackets the default.",
        "",
    ]
    for name, default, other, _, meaning in parameter_rows():
        differs = "" if other == default else f"; kvpress {other.partition('; ')[0]}"
        mark = "`" if ", " in default else ""  # of methods: a list is no part of the sentence
        lines.append(f"- {name} ({mark}{default}{differs}{mark}): {meaning}")
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Return every command of `ckv` with its arguments and options; those of many, once."""
    lines = ["# Command line", "", _MADE]
    lines += [
        "After `make run` the command is `.venv/bin/ckv`, or `ckv` once the environment is active",
        "(`source .venv/bin/activate`). `python -m ckv_core` has the commands that need no",
        "database. Exit code 2 means a bad argument, 1 a failed run.",
        "",
    ]
    found = dict(_commands_in(get_command(commands()), "ckv"))
    options = Counter(_option_line(each) for command in found.values() for each in command.params)
    shared = [line for line, count in options.items() if count > 1 and line.startswith("- `--")]
    lines += ["## Options of several commands", "", *shared, ""]
    for name, command in found.items():
        own = [_option_line(each) for each in command.params]
        also = [line.split("`")[1].split()[0] for line in own if line in shared]
        own = [line for line in own if line not in shared]
        own += [f"- also {', '.join(f'`{each}`' for each in also)}"] * bool(also)
        lines += [f"## {name}", "", command.help or "", "", *own, *[""] * bool(own)]
    return "\n".join(lines).rstrip() + "\n"


def _commands_in(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for word, each in command.commands.items():
            yield from _commands_in(each, f"{name} {word}")
    else:
        yield name, command


def _option_line(option: Any) -> str:
    named = isinstance(option, TyperOption)
    words = "/".join((*option.opts, *option.secondary_opts)) if named else ""
    value = "" if getattr(option, "is_flag", False) else option.metavar or option.name.upper()
    default = option.default if named and not callable(option.default) else None
    shown = "" if default in (None, False, True, "", (), ("full",)) else f" (default {default})"
    meaning = getattr(option, "help", None) or ""
    return f"- `{f'{words} {value}'.strip()}`{': ' if meaning else ''}{meaning}{shown}"


def metrics_table() -> str:
    """Return a row per metric, between the marks of docs/reference/definitions.md.

    A distance under three norms is one row.
    """
    heads = ("name", "what", "definition", "unit", "n", "better", "source")
    other_norms = [key for key in METRICS if "_l2" in key or "_cosine" in key]
    rows = [_metric_row(metric) for key, metric in METRICS.items() if key not in other_norms]
    return "\n".join([BEGIN, *_table(heads, rows), END])


def _metric_row(metric: Metric) -> tuple[str, ...]:
    norms = [
        each for each in ("l2", "cosine") if metric.key.replace("_l1", f"_{each}") in METRICS
    ] * ("_l1" in metric.key)
    return (
        ", ".join((f"`{metric.key}`", *(f"`_{each}`" for each in norms))),
        metric.label,
        metric.definition,
        metric.unit,
        _AXES[metric.axes],
        metric.better or "",
        "" if metric.source == "ours" else metric.source,
    )


def method_groups() -> str:
    """Return the README's list: the methods of each class, linked to their reference."""
    lines = [BEGIN]
    for group, members in by_class(METHODS):
        links = (f"[{each.label}](docs/reference/methods.md#{each.name})" for each in members)
        lines.append(f"- **{group.name}.** {', '.join(links)}")
    return "\n".join([*lines, END])


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    heads = tuple(heads)
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |"


def _between_marks(page: Path, text: str) -> str:
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    return before + text + rest.partition(END)[2]


PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE / "methods.md": methods_page,
    REFERENCE / "parameters.md": parameters_page,
    REFERENCE / "commands.md": commands_page,
    REFERENCE / "schema.md": schema_markdown,
    REFERENCE / "api.md": lambda: openapi.markdown(endpoints(Api)),
    DEFINITIONS: lambda: _between_marks(DEFINITIONS, metrics_table()),
    README: lambda: _between_marks(README, method_groups()),
}

if __name__ == "__main__":
    for page, text in PAGES.items():
        page.write_text(text(), encoding="utf-8")
