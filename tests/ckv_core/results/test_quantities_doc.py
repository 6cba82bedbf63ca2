"""docs/definitions.md holds the quantities as they are."""

from ckv_core.results.quantities import QUANTITIES
from ckv_core.results.quantities_doc import PAGE, quantities_table, with_table


def test_the_table_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page


def test_every_quantity_has_a_row_of_six_cells() -> None:
    rows = [line for line in quantities_table().splitlines() if line.startswith("| `")]
    assert len(rows) == len(QUANTITIES)
    for row in rows:
        assert len(row.replace("\\|", "").strip("|").split("|")) == 6
        assert all(cell.strip() for cell in row.split(" | "))
