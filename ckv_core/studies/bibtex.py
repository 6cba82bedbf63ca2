"""The papers of a study's methods and tasks, and this tool, as BibTeX. No torch."""

import re

from ckv_core import __version__
from ckv_core.request.variants import VariantSpec
from ckv_core.studies.methods_text import CRITICAL_SOURCE
from ckv_core.studies.records import Study

CRITICAL_TITLE = "CriticalKV: Optimizing KV Cache Eviction from an Output Perturbation Perspective"
RULER_SOURCE = "Hsieh et al. 2024, arXiv:2404.06654"
RULER_TITLE = "RULER: What's the Real Context Size of Your Long-Context Language Models?"
_SOURCE = re.compile(
    r"(?:after )?(?P<authors>[^,]+?) (?P<year>\d{4}), arXiv:(?P<id>\d{4}\.\d{4,5})"
)
_SPECIAL = re.compile(r"([&%$#_{}~^\\])")


def bibtex(study: Study) -> str:
    """One entry a paper, in the order of the study's methods, then the tool's own."""
    papers: dict[tuple[str, str], dict[str, None]] = {}  # source and title -> what is used of it
    for text in study.variants:
        spec = VariantSpec.parse(text)
        if spec.method.evicts:
            paper = (spec.method.source.removeprefix("after "), spec.method.title)
            papers.setdefault(paper, {})[spec.method.label] = None
        if spec.critical:
            papers.setdefault((CRITICAL_SOURCE, CRITICAL_TITLE), {})["CriticalKV"] = None
    if "task" in study.data:
        papers[RULER_SOURCE, RULER_TITLE] = {"RULER": None}
    entries = [_paper(*paper, ", ".join(used)) for paper, used in papers.items()]
    return "\n".join([*filter(None, entries), _tool(study)])


def _paper(source: str, title: str, used: str) -> str:
    """Empty for what is no paper: a control, or a source that names none."""
    found = _SOURCE.fullmatch(source)
    if found is None:
        year = re.search(r"\d{4}", source)
        return _entry(_key(used), title=title or used, note=source) if year else ""
    authors, year_text, number = found.group("authors", "year", "id")
    return _entry(
        f"{_key(authors.partition(' ')[0])}{year_text}_{number.replace('.', '_')}",
        author=authors.replace(" et al.", " and others"),
        title=title or used,
        year=year_text,
        eprint=number,
        archiveprefix="arXiv",
        url=f"https://arxiv.org/abs/{number}",
        note=f"Used here: {used}",
    )


def _tool(study: Study) -> str:
    note = f"Version {__version__}, study {study.name}"
    return _entry("criticalkv_lab", title="CriticalKV Lab", note=note)


def _entry(key: str, **fields: str) -> str:
    escaped = {name: _SPECIAL.sub(_escaped, value) for name, value in fields.items()}
    # Braces of its own keep a title's capitals; an address is never escaped.
    escaped |= {"title": f"{{{escaped['title']}}}"}
    escaped |= {"url": fields["url"]} if "url" in fields else {}
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in escaped.items())
    return f"@misc{{{key},\n{lines}}}\n"


def _escaped(found: re.Match[str]) -> str:
    words = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    return words.get(found[1], f"\\{found[1]}")


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "source"
