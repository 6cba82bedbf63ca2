"""docs/schema.md is what the tables are."""

from pathlib import Path

from scripts.schema_doc import schema_markdown
from storage.models import Base

PAGE = Path(__file__).parents[2] / "docs" / "schema.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == schema_markdown()


def test_every_column_is_on_the_page_and_explained():
    sections = dict(part.split("\n", 1) for part in schema_markdown().split("\n## ")[1:])
    assert sections.keys() == Base.metadata.tables.keys()
    for table in Base.metadata.tables.values():
        rows = [line.split(" | ") for line in sections[table.name].splitlines() if " | " in line]
        explained = {row[0].removeprefix("| "): row[3].removesuffix(" |") for row in rows}
        for column in table.columns:
            assert explained[column.name].strip()
