"""Figures are declared well, and docs/definitions.md holds them as they are."""

from ckv_core.results.figures import FIGURES, figures_in
from ckv_core.results.figures_doc import PAGE, figures_table, with_table


def test_the_table_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page


def test_every_figure_has_a_row_of_seven_cells() -> None:
    rows = [line for line in figures_table().splitlines() if line.startswith("| `")]
    assert len(rows) == len(FIGURES)
    for row in rows:
        assert len(row.replace("\\|", "").strip("|").split("|")) == 7
        assert all(cell.strip() for cell in row.split(" | "))


def test_no_two_figures_share_a_key_a_header_or_a_label() -> None:
    headers = [figure.header or key for key, figure in figures_in("csv").items()]
    assert len(set(headers)) == len(headers)
    labels = [figure.mean_label for figure in FIGURES.values()]
    assert len(set(labels)) == len(labels)
