"""A run or a study as one HTML file that opens offline: the app's components, fed from inside.

No text of theirs stands in the markup: all of it is packed (gzip, base64) and put on the page by
scripts as text. The policy in the file lets run exactly the two scripts whose hashes it names, and
lets nothing be fetched.
"""

import base64
import functools
import gzip
import hashlib
import html
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

from ckv_core.errors import CkvError
from ckv_core.experiment.reading import Reading
from storage.records import RunNotes
from ui.components.modules import joined
from ui.looks.theme import CSS_PATHS, build_theme
from ui.report.contents import (
    GROUPS,
    Contents,
    Group,
    Section,
    contents_of,
    contents_of_samples,
)
from ui.results.figure_routes import packed_plotly
from ui.services.live_runs import RunSnapshot

LIMIT_BYTES = 64 * 2**20
MIB = 2**20
_STYLES = (*CSS_PATHS, Path(__file__).with_name("report.css"))
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>CriticalKV Lab report</title>
<style>
$style
</style>
</head>
<body>
<main class="ckv ckv-report"><noscript>This report is drawn by its own scripts; open it in a
browser that runs them.</noscript></main>
$files
<script>$script</script>
</body>
</html>
""")
# Charts write style attributes, and are saved as pictures by way of data and blob addresses.
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


class ReportTooBigError(CkvError):
    """The file would pass the limit."""


def build_report(
    run: RunSnapshot,
    notes: RunNotes | None = None,
    without: Collection[Group] = (),
    limit_bytes: int = LIMIT_BYTES,
) -> bytes:
    """The file, UTF-8, of a run that is over.

    Raises:
        ReportTooBigError: it would be longer; the sentence says what to leave out.
    """
    contents = contents_of(run, notes or RunNotes(), without)
    made = f"{run.created_at:%Y-%m-%d %H:%M} UTC"
    subtitle = f"Report of CriticalKV Lab on run {run.slug}, made {made}"
    return _packed_report({"title": run.title, "subtitle": subtitle}, contents, limit_bytes)


def build_panel(title: str, contents: Contents, section: Section, whole: str) -> bytes:
    """One section alone, UTF-8, with a link to the whole at this address.

    Raises:
        ReportTooBigError: it would be longer than a report may be.
    """
    only = replace(contents, sections=[section])
    return _packed_report({"title": title, "whole": whole}, only, LIMIT_BYTES)


def report_of_samples(reading: Reading, facts: Mapping[str, Any]) -> bytes:
    """The file, UTF-8, of a run of many samples; `facts` are `StoredStudy.facts`.

    Raises:
        ReportTooBigError: it would be longer than a report may be.
    """
    made = str(facts["created_at"])[:16].replace("T", " ")
    subtitle = f"Report of CriticalKV Lab on study {reading.slug}, made {made} UTC"
    contents = contents_of_samples(reading, facts)
    page = {"title": reading.study.name, "subtitle": subtitle}
    return _packed_report(page, contents, LIMIT_BYTES)


def _packed_report(page: dict[str, Any], contents: Contents, limit_bytes: int) -> bytes:
    """Contents as the file, UTF-8; `page` has its title, and a subtitle or the link of a panel.

    Raises:
        ReportTooBigError: it would be longer.
    """
    files = {
        group: {name: _packed(data) for name, data in members.items()}
        for group, members in contents.files.items()
    }
    if files.get("charts"):
        files["charts"]["plotly"] = _plotly()[0]
    packed = {"page": _packed(_page_json(page, contents))}
    script = _script(contents)
    tags = [
        f'<script type="text/plain" data-file="{html.escape(name)}">{data}</script>'
        for members in (packed, *files.values())
        for name, data in members.items()
    ]
    text = _PAGE.substitute(
        policy=_POLICY.format(scripts=" ".join((_hash(script.encode()), _plotly()[1]))),
        style=_style(),
        files="\n".join(tags),
        script=script,
    )
    data = text.encode()
    if len(data) > limit_bytes:
        raise ReportTooBigError(_too_big(len(data), limit_bytes, files))
    return data


def _page_json(page: dict[str, Any], contents: Contents) -> bytes:
    sections = [
        {
            "name": section.name,
            "heading": section.heading,
            "text": section.text,
            "components": [
                {"component": {"name": each.name, "module": each.module}, "value": value}
                for each, value in section.shown
            ],
        }
        for section in contents.sections
    ]
    return json.dumps({**page, "sections": sections}).encode()


def _script(contents: Contents) -> str:
    """The modules of the components that are shown, then the page's own, which draws them."""
    used = {component.module for section in contents.sections for component, _ in section.shown}
    return joined([*sorted(used), "ui/report/report.js"])


@functools.cache
def _style() -> str:
    """The theme's variables without its fonts, which are files, and the style sheets."""
    _, rules, theme = build_theme()._get_theme_css().partition(":root {")  # type: ignore[no-untyped-call]
    return "\n".join([rules + theme, *(path.read_text("utf-8") for path in _STYLES)])


@functools.cache
def _plotly() -> tuple[str, str]:
    """The chart library packed as the other files, and its hash."""
    packed = packed_plotly()
    return base64.b64encode(packed).decode(), _hash(gzip.decompress(packed))


def _packed(data: bytes) -> str:
    # Level 6 takes four times as long on kept bits, for 2 % less.
    return base64.b64encode(gzip.compress(data, 4, mtime=0)).decode()


def _hash(script: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"


def _too_big(size: int, limit: int, files: dict[Group, dict[str, str]]) -> str:
    sizes = {group: sum(map(len, members.values())) / MIB for group, members in files.items()}
    ordered = sorted(sizes, key=lambda group: -sizes[group]) or ["kept"]
    named = ", ".join(f"{name} ({GROUPS[name]}) {sizes.get(name, 0):.1f} MiB" for name in ordered)
    return (
        f"The report of this run would take {size / MIB:.1f} MiB and may take "
        f"{limit / MIB:.1f} MiB; leave something out. It holds: {named}. Add "
        f"?without={ordered[0]} to the address, or --without {ordered[0]} on the command line."
    )
