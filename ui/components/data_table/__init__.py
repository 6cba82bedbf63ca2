"""A table that can be sorted by any column and saved as CSV."""

from ui.components.base import component

DataTable = component(__file__, "data_table")
"""Shows {"caption", "head", "columns", "rows", "note", "file", "empty"}.

`empty` is shown while there is no row.
`head` is a sentence above the rows, or empty; its rows have a "regime" that marks them.
`columns` is a list of {"key", "label", "unit", "align"} with "help" behind a question mark, "extra"
where it is shown on demand, and "hidden" where it is in the file only.
`rows` is a list of {"look", "cells"}; `look` is that of the variant or line that the row belongs
to, or null. `cells` is {key: {"text", "value", "href", "title", "tone", "spec", "pieces"}}: `text`
is read, `value` sorted by and saved, `href` leads to a page of ours, `tone` is "", "warn" or
"good", `spec` stands below a row's name, and `pieces` are (text, whether it differs) in its place.
`file` names the CSV file, which has all columns.
"""
