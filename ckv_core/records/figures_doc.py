"""Writes the table in docs/definitions.md: `python -m ckv_core.records.figures_doc`."""

from pathlib import Path

from ckv_core.records.figures import FIGURES
from ckv_core.records.quantities import Figure

PAGE = Path(__file__).parents[2] / "docs" / "definitions.md"
BEGIN = "<!-- begin: written by python -m ckv_core.records.figures_doc -->"
END = "<!-- end -->"
_AXES = {
    "head": "each of L x H heads",
    "kv_head": "each of L x G KV heads",
    "layer": "each layer",
    "model": "one",
    "variant": "one",
    "step": "each position",
}


def figures_table() -> str:
    """The table, one row per figure, between its two marks."""
    head = f"| name | what | definition | unit | n | closer | source |\n|{' --- |' * 7}"
    return "\n".join([BEGIN, head, *map(_row, FIGURES.values()), END])


def with_table(page: str) -> str:
    """The page with the table in the place of the one between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + figures_table() + after


def _row(figure: Figure) -> str:
    cells = (
        f"`{figure.key}`",
        figure.label,
        figure.definition,
        figure.unit,
        _AXES[figure.axes],
        figure.better or "-",
        figure.source,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
