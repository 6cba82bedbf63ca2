"""One table: columns declared once, rendered to page, report, terminal and files. No torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from itertools import zip_longest
from typing import Any, Generic, Literal, TypeVar

from ckv_core.records.metrics import Metric
from ckv_core.records.records import Outcome

Item = TypeVar("Item")
Plain = str | int | float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """The content of one cell.

    Attributes:
        value: it is sorted by and saved as this; None where its text is.
        title: more words, which a page shows on demand.
        tone: `good` and `warn` have a sign.
        href: of a page of ours.
        spec: of the variant that it names.
        pieces: (text, whether it differs) of a generated text.
        outcome: its sign and tint on a page; `none` of what is not known.
        word: what the sign says where the text does not.
        more: behind the text, in grey.
        strip: low end, mean and high end of an interval from 0 to 1, drawn in the row's colour.
    """

    text: str
    value: Plain = None
    title: str = ""
    tone: Literal["", "good", "warn"] = ""
    href: str = ""
    spec: str = ""
    pieces: Sequence[tuple[str, bool]] = ()
    outcome: Outcome | Literal[""] = ""
    word: str = ""
    more: str = ""
    strip: Sequence[float] = ()

    @property
    def page(self) -> dict[str, Any]:
        given = {each.name: getattr(self, each.name) for each in fields(self)[2:]}
        return {"text": self.text, "value": self.value} | {k: v for k, v in given.items() if v}


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """One column.

    Attributes:
        key: in files and in the component.
        read: the cell of an item, or its text or number; None where nothing is known.
        form: of a number, as `format` has it.
        is_text: to the left.
        is_extra: shown on demand; in the terminal below the table, a line per item.
        is_hidden: in files only.
        href: of the page of ours that its head leads to.
        place: of the variant that it is about, whose mark stands in its head.
    """

    key: str
    label: str
    read: Callable[[Item], Cell | Plain]
    _: KW_ONLY
    unit: str = ""
    definition: str = ""
    form: str = ""
    is_text: bool = False
    is_extra: bool = False
    is_hidden: bool = False
    href: str = ""
    place: int | None = None

    @property
    def head(self) -> str:
        """Label and unit in one line."""
        is_plain = self.unit in ("", "share") or self.unit in self.label
        return self.label if is_plain else f"{self.label} ({self.unit})"

    def cell(self, item: Item) -> Cell | None:
        found = self.read(item)
        if found is None or isinstance(found, Cell):
            return found
        return Cell(found) if isinstance(found, str) else Cell(format(found, self.form), found)

    @property
    def page(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "label": self.label,
            "unit": self.unit,
            "align": "left" if self.is_text else "right",
            "help": self.definition,
            "extra": self.is_extra,
            "hidden": self.is_hidden,
            "href": self.href,
        }


def text_column(
    key: str, label: str, read: Callable[[Item], Cell | str | None], **more: Any
) -> Column[Item]:
    return Column(key, label, read, is_text=True, **more)


def metric_column(
    metric: Metric, read: Callable[[Item], Cell | Plain], **changed: Any
) -> Column[Item]:
    """A column of a metric, named and explained by the registry unless `changed` says otherwise."""
    own = {"label": metric.label, "unit": metric.unit_name, "definition": metric.definition}
    return Column(metric.key, read=read, **(own | changed))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table(Generic[Item]):
    """A row per item.

    Attributes:
        caption: what it is a table of.
        file: name of its CSV file on a page.
        head: sentence above rows of both regimes, which `marks` names for each row.
        places: of each row's variant among those that look alike in all tables and charts.
        equal: of each row whether it is the same in all columns, so that a page may hide it.
        note: below the rows.
        first: rows that a page shows before the others are requested; 0 for all.
        empty: in place of none.
    """

    caption: str
    columns: Sequence[Column[Item]]
    items: Sequence[Item]
    file: str = ""
    head: str = ""
    note: str = ""
    empty: str = ""
    marks: Sequence[str] = ()
    places: Sequence[int] = ()
    equal: Sequence[bool] = ()
    first: int = 0

    def value(self, looks: Mapping[int, Any] | None = None) -> dict[str, Any]:
        """Value of the component DataTable; `looks` is how the variants of a place are drawn."""
        rows, known = zip_longest(self.items, self.marks, self.places, self.equal), looks or {}

        def cells(item: Item) -> dict[str, Any]:
            found = {column.key: column.cell(item) for column in self.columns}
            return {key: cell.page for key, cell in found.items() if cell}

        return {
            "caption": self.caption,
            "columns": [
                column.page
                | ({} if (place := column.place) is None else {"look": known.get(place)})
                for column in self.columns
            ],
            "rows": [
                {"look": known.get(at), "regime": mark or "", "cells": cells(item)}
                | ({"equal": True} if equal else {})
                for item, mark, at, equal in rows
            ],
            "file": self.file,
            "head": self.head,
            "note": self.note,
            "empty": self.empty,
            "first": self.first,
        }
