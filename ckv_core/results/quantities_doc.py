"""Writes the table in docs/definitions.md: `python -m ckv_core.results.quantities_doc`."""

from pathlib import Path

from ckv_core.results.quantities import QUANTITIES, Quantity

PAGE = Path(__file__).parents[2] / "docs" / "definitions.md"
BEGIN = "<!-- begin: written by python -m ckv_core.results.quantities_doc -->"
END = "<!-- end -->"
_AXES = {
    "head": "each of L x H heads",
    "kv_head": "each of L x G KV heads",
    "layer": "each layer",
    "model": "one",
    "step": "each position",
}


def quantities_table() -> str:
    """The table, one row per quantity, between its two marks."""
    head = "| name | what | formula | unit | n | source |\n| --- | --- | --- | --- | --- | --- |"
    return "\n".join([BEGIN, head, *map(_row, QUANTITIES.values()), END])


def with_table(page: str) -> str:
    """The page with the table in the place of the one between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + quantities_table() + after


def _row(quantity: Quantity) -> str:
    cells = (
        f"`{quantity.name}`",
        quantity.label,
        quantity.formula,
        quantity.unit,
        _AXES[quantity.axes],
        quantity.source,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
