"""docs/definitions.md as plain values: the report carries the meaning of its numbers along."""

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "definitions.md"
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_PARAGRAPH_BORDER = re.compile(r"\n\s*\n")

Block = dict[str, Any]


def definitions() -> list[Block]:
    """Blocks of the page in its order, its title left out.

    A block is {"heading"}, {"text"}, {"items"} or {"columns", "rows"}; all texts are plain.
    """
    page = re.sub(r"<!--.*?-->", "", PAGE.read_text(encoding="utf-8"))
    parts = [part.strip("\n") for part in _PARAGRAPH_BORDER.split(page)]
    return [_block(part) for part in parts if part.strip() and not part.startswith("# ")]


def _block(part: str) -> Block:
    lines = part.split("\n")
    if part.startswith("#"):
        return {"heading": _plain(part.lstrip("# "))}
    if part.startswith("|"):
        head, _, *rows = lines
        return {"columns": _cells(head), "rows": [_cells(row) for row in rows]}
    if part.startswith("- "):
        return {"items": [_plain(item) for item in re.split(r"(?:^|\n)- ", part) if item]}
    return {"text": _plain(part)}


def _cells(line: str) -> list[str]:
    return [_plain(cell) for cell in _CELL_BORDER.split(line)[1:-1]]


def _plain(text: str) -> str:
    return " ".join(text.replace("`", "").replace("\\|", "|").split())
