"""What columns hold on every database, and how the page of the schema explains them."""

import re

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite

from scripts.schema_doc import schema_markdown
from storage.models import AnyText, Base

DIALECT = sqlite.dialect()
HOSTILE = st.text(st.sampled_from("a0\x00\ud800\udfff\ue000\U0001f600")) | st.text()
USUAL = st.text(st.characters(exclude_categories=["Cs", "Co"], exclude_characters="\x00"))


@given(HOSTILE, USUAL)
def test_any_text_survives_and_can_be_held_and_usual_text_is_stored_as_it_is(hostile, usual):
    stored = AnyText().process_bind_param(hostile, DIALECT)
    assert "\x00" not in stored
    stored.encode("utf-8")
    assert AnyText().process_result_value(stored, DIALECT) == hostile
    assert AnyText().process_bind_param(usual, DIALECT) == usual


def test_the_page_of_the_schema_explains_every_column():
    sections = dict(part.split("\n", 1) for part in schema_markdown().split("\n## ")[1:])
    assert sections.keys() == Base.metadata.tables.keys()
    for table in Base.metadata.tables.values():
        explained = dict(
            re.findall(r"^- `(\w+)` [^:\n]+: (.+)$", sections[table.name], re.MULTILINE)
        )
        for column in table.columns:
            assert explained[column.name].strip()
