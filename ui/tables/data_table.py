"""Values of the DataTable: its columns, its cells, and the table around them."""

from collections.abc import Iterable, Sequence
from typing import Any

from ui.looks.palette import Look

Cells = dict[str, Any]  # by key of their column
Column = dict[str, Any]


def column(key: str, label: str, unit: str = "", *, align: str = "right", **more: Any) -> Column:
    """A column of figures; `more` is what the component knows besides: help, extra, hidden."""
    return {"key": key, "label": label, "unit": unit, "align": align, **more}


def text_column(key: str, label: str, unit: str = "", **more: Any) -> Column:
    return column(key, label, unit, align="left", **more)


def figure(value: float | None, form: str) -> dict[str, Any]:
    """A figure as `str.format` writes it; empty for none."""
    return {"text": "" if value is None else form.format(value), "value": value}


def count(value: int) -> dict[str, Any]:
    return figure(value, "{:,}")


def table_row(cells: Cells, look: Look | None = None, regime: str = "") -> dict[str, Any]:
    """A row; one that stands for a variant or curve has its look, and its regime where needed."""
    return {"look": look and look.value, "regime": regime, "cells": cells}


def data_table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[dict[str, Any]],
    *,
    file: str,
    **sentences: str,
) -> dict[str, Any]:
    """Value of the component.

    Args:
        caption: what it is a table of.
        columns: of `column`.
        rows: of `table_row`.
        file: name of the CSV file.
        sentences: `head` above rows of both regimes, `note` below them, `empty` in place of none.
    """
    table = {"caption": caption, "columns": list(columns), "rows": list(rows), "file": file}
    return {"head": "", "note": "", "empty": ""} | table | sentences
