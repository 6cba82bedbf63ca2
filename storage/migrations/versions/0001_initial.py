"""All tables of the first release, and the full-text search, which is no mapped class.

Until that release these are the tables of storage/models.py, and the revision is named after them,
so that `storage.database` refuses a database whose tables are others. Before the first change
after it both are to be written out here.
"""

import hashlib

from alembic import op
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from storage.models import Base


def _tables() -> str:
    """The first digits of a hash of all tables and indices."""
    made: list[ExecutableDDLElement] = []
    for table in Base.metadata.sorted_tables:
        indices = sorted(table.indexes, key=lambda each: str(each.name))
        made += [CreateTable(table), *map(CreateIndex, indices)]
    words = "".join(str(each.compile(dialect=sqlite.dialect())) for each in made)
    return hashlib.sha256(words.encode()).hexdigest()[:8]


revision = f"tables_{_tables()}"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    Base.metadata.create_all(op.get_bind())
    if op.get_bind().dialect.name == "sqlite":
        # The words come cut and folded, so the tokenizer only has to split at spaces.
        op.execute(
            "CREATE VIRTUAL TABLE run_search USING fts5(words, tokenize = 'ascii', detail = none)"
        )
    else:
        op.execute(
            "CREATE TABLE run_search (run_id BIGINT PRIMARY KEY REFERENCES runs (id) "
            "ON DELETE CASCADE, words TSVECTOR NOT NULL)"
        )
        op.execute("CREATE INDEX ix_run_search_words ON run_search USING gin (words)")
