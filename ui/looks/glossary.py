"""Words that explain themselves where they stand: docs/reference/glossary.md, *Words on screen*."""

import html
import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "glossary.md"
_HEADING = "## Words on screen"
_ROW = re.compile(r"^\| (?!word \||---)([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_MARKED = re.compile(r"\[\[([^\]|]+)(?:\|([^\]]+))?\]\]")


@cache
def words() -> dict[str, str]:
    table = PAGE.read_text(encoding="utf-8").partition(_HEADING)[2]
    return {word.strip(): text.strip() for word, text in _ROW.findall(table)}


def with_terms(text: str) -> str:
    """HTML in which `[[KV head]]`, or `[[KV head|heads]]`, is a button that explains the word."""
    return _MARKED.sub(lambda match: _button(match[1], match[2] or match[1]), text)


def without_marks(text: str) -> str:
    """The plain words, for where nothing can be shown."""
    return _MARKED.sub(lambda match: match[2] or match[1], text)


def _button(word: str, shown: str) -> str:
    words()[word]
    value = html.escape(word)
    return (
        f'<button type="button" class="ckv-term" value="{value}" aria-label="{html.escape(shown)}, '
        f'explain">{html.escape(shown)}</button>'
    )
