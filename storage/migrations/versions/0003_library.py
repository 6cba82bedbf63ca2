"""Library: notes, tags, pins, lineage, undo of delete, full-text search."""

import re
import unicodedata

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INDEXES = {
    "ix_runs_deleted_at_pinned_created_at_id": ("runs", ["deleted_at", "pinned", "created_at", "id"]),
    "ix_runs_parent_slug": ("runs", ["parent_slug"]),
    "ix_variants_run_id_method_budget_tokens": ("variants", ["run_id", "method", "budget_tokens"]),
}


def upgrade() -> None:
    for column in (
        sa.Column("note", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("parent_slug", sa.String(length=12), nullable=True),
        sa.Column("lineage", sa.String(length=8), nullable=True),
    ):
        op.add_column("runs", column)
    for name, (table, columns) in INDEXES.items():
        op.create_index(name, table, columns)
    op.create_table(
        "tags",
        sa.Column("run_id", ROW_ID, autoincrement=False, nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_tags_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("pk_tags")),
    )
    op.create_index("ix_tags_name_run_id", "tags", ["name", "run_id"])
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
    index_all()


def index_all() -> None:
    bind = op.get_bind()
    insert = {
        "sqlite": "INSERT INTO run_search (rowid, words) VALUES (:run_id, :words)",
    }.get(
        bind.dialect.name,
        "INSERT INTO run_search (run_id, words) "
        "VALUES (:run_id, array_to_tsvector(string_to_array(:words, ' ')))",
    )
    runs = bind.execute(
        sa.text("SELECT r.id, r.title, p.question FROM runs r JOIN prompts p ON p.run_id = r.id")
    ).all()
    for run_id, *parts in runs:
        texts = bind.execute(
            sa.text("SELECT text FROM variants WHERE run_id = :id ORDER BY position"), {"id": run_id}
        ).scalars()
        source = unicodedata.normalize("NFKC", "\n".join([*parts, *texts])[:200_000]).casefold()
        words = sorted({word[:60] for word in re.findall(r"[^\W_]+", source)})
        bind.execute(sa.text(insert), {"run_id": run_id, "words": " ".join(words)})


def downgrade() -> None:
    # What was deleted must not come back; SQLite does not cascade while it migrates.
    gone = "(SELECT id FROM runs WHERE deleted_at IS NOT NULL)"
    op.execute(f"DELETE FROM arrays WHERE variant_id IN (SELECT id FROM variants WHERE run_id IN {gone})")
    for table in ("variants", "prompts"):
        op.execute(f"DELETE FROM {table} WHERE run_id IN {gone}")
    op.execute("DELETE FROM runs WHERE deleted_at IS NOT NULL")
    op.execute("DROP TABLE run_search")
    op.drop_table("tags")
    for name, (table, _) in INDEXES.items():
        op.drop_index(name, table_name=table)
    for name in ("lineage", "parent_slug", "deleted_at", "pinned", "note"):
        op.drop_column("runs", name)
