"""A table that can be sorted by any column and saved as CSV."""

from ui.components.base import component

DataTable = component(__file__, "data_table")
"""Shows {"caption", "head", "columns", "rows", "note", "file", "empty"}.

`empty` is shown while there is no row.
`head` is a sentence above the rows, or empty; its rows have a "regime" that marks them.
`columns` is a list of {"key", "label", "unit", "align"}; `rows` a list of {"look", "cells"}
with cells {key: {"text", "value", "href"}}: `text` is read, `value` sorted by and saved, and
`href` leads to a page of ours. `look` is
that of the line that the row belongs to, or null. `file` names the CSV file, which also
has the columns that are `hidden`.
"""
