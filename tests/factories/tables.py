"""Tables read back: the rows of a CSV text, and the numbers in their columns."""

import csv
import io

import numpy as np


def rows_of(text: str) -> list[dict[str, str]]:
    """Cells of each row by column."""
    return list(csv.DictReader(io.StringIO(text)))


def numbers(rows: list[dict[str, str]], column: str, **where: object) -> np.ndarray:
    """One column of the rows that have these cells; an empty cell is NaN."""
    own = [row for row in rows if all(row[key] == str(cell) for key, cell in where.items())]
    return np.array([float(row[column] or "nan") for row in own])
