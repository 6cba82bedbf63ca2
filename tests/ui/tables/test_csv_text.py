"""Texts in CSV: a row stays one row for every reader, and no cell is a formula."""

import csv
import io

from hypothesis import example, given
from hypothesis import strategies as st

from ui.components.modules import joined
from ui.tables.csv_text import csv_text

CSV = "assets/scripts/dom.js"
BREAKS = "\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029"
STARTS = "=+-@\uff1d\uff0b\uff0d\uff20"
HIDING = " \t\r\n\xa0\u200b\u3000\ufeff"  # before a formula, which a spreadsheet then still runs
TEXTS = st.text(
    st.sampled_from(f"{BREAKS}{STARTS}{HIDING}\0\x1b\ud800,;'\"1a\u00e9\U0001f600")
    | st.characters(),
    max_size=12,
)
ROWS = st.lists(st.tuples(TEXTS, TEXTS, st.just(1.5)), max_size=4)


@given(ROWS)
@example([("a\r=1+1", "b\n=1+1", 1.5)])
@example([("\xa0=1+1", "a;=1+1;b", 1.5)])
def test_any_text_is_one_cell_of_one_row_and_never_a_formula(rows):
    data = csv_text(("a", "b", "c"), rows).encode()
    for newline in (None, "", "\n"):
        read = list(csv.reader(io.TextIOWrapper(io.BytesIO(data), "utf-8", newline=newline)))
        assert [len(row) for row in read] == [3] * (1 + len(rows))
    lines = data.decode().splitlines()
    assert len(lines) == 1 + len(rows)  # also for a reader that knows no quotes
    # A spreadsheet of a language with the comma in numbers separates by semicolons.
    cells = [cell for line in lines[1:] for cell in [*next(csv.reader([line])), *line.split(";")]]
    for cell in cells:
        start = cell.lstrip(HIDING)[:1]
        assert not start or start not in STARTS or cell[1:].rstrip("% ").replace(".", "").isdigit()


def test_harmless_text_and_numbers_stay_as_they_are():
    row = ('It\'s a-b, "c" = d; e', "-12.5 %", -1.5, None, True)
    text = csv_text(("a", "b", "c", "d", "e"), [row])
    assert next(csv.reader([text.splitlines()[1]])) == [*map(str, row[:3]), "", "True"]


def test_pages_write_texts_as_the_server_does(browser):
    texts = ["a\r=1+1", "\xa0=1", "a;=1", "a\t\0\x1b\x85\u2028b", '"=1"', "-12 %", "-x", "\ufeff@a"]
    page = browser.new_page()
    written = page.evaluate(
        f'texts => {{ {joined([CSV])}; return texts.map(MODULES["{CSV}"].csvField); }}', texts
    )
    assert written == csv_text((), [(text,) for text in texts]).splitlines()[1:]
