"""The papers of a study's methods and tasks, and this tool, as BibTeX. No torch."""

import re

from ckv_core import __version__
from ckv_core.request.variants import VariantSpec
from ckv_core.studies.methods_text import CRITICAL_SOURCE
from ckv_core.studies.records import Study

HEAD = "% Titles are the names that this tool uses; arXiv has the papers' own.\n"
RULER_SOURCE = "Hsieh et al. 2024, arXiv:2404.06654"
_SOURCE = re.compile(
    r"(?:after )?(?P<authors>[^,]+?) (?P<year>\d{4}), arXiv:(?P<id>\d{4}\.\d{4,5})"
)
_SPECIAL = re.compile(r"([&%$#_{}~^\\])")


def bibtex(study: Study) -> str:
    """One entry a paper, in the order of the study's methods, then the tool's own."""
    named: dict[str, list[str]] = {}
    for text in study.variants:
        spec = VariantSpec.parse(text)
        if spec.method.evicts:
            source = spec.method.source.removeprefix("after ")
            named.setdefault(source, []).append(spec.method.label)
        if spec.critical:
            named.setdefault(CRITICAL_SOURCE, []).append("CriticalKV")
    if "task" in study.data:
        named[RULER_SOURCE] = ["RULER"]
    entries = [_paper(source, ", ".join(dict.fromkeys(names))) for source, names in named.items()]
    return HEAD + "\n".join([*filter(None, entries), _tool(study)])


def _paper(source: str, title: str) -> str:
    """Empty for what is no paper: a control, or a source that names none."""
    found = _SOURCE.fullmatch(source)
    if found is None:
        year = re.search(r"\d{4}", source)
        return _entry(_key(title), title=title, note=source) if year else ""
    authors, year_text, number = found.group("authors", "year", "id")
    return _entry(
        f"{_key(authors.partition(' ')[0])}{year_text}_{number.replace('.', '_')}",
        author=authors.replace(" et al.", " and others"),
        title=title,
        year=year_text,
        eprint=number,
        archiveprefix="arXiv",
        url=f"https://arxiv.org/abs/{number}",
    )


def _tool(study: Study) -> str:
    note = f"Version {__version__}, study {study.name}"
    return _entry("criticalkv_lab", title="CriticalKV Lab", note=note)


def _entry(key: str, **fields: str) -> str:
    lines = "".join(
        f"  {name} = {{{_SPECIAL.sub(_escaped, value) if name != 'url' else value}}},\n"
        for name, value in fields.items()
    )
    return f"@misc{{{key},\n{lines}}}\n"


def _escaped(found: re.Match[str]) -> str:
    words = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    return words.get(found[1], f"\\{found[1]}")


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "source"
