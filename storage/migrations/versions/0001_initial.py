"""All tables of the first release, and the full-text search, which is no mapped class.

Until that release these are the tables of storage/models.py; before the first change after it
they are to be written out here. Databases of before have the schemas 0001 to 0012, release_0001 or
runs_0001, with other tables; `storage.database` refuses those.
"""

from alembic import op

from storage.models import Base

revision = "results_0001"
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
