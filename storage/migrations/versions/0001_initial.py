"""All tables of the first release. A released migration is never edited.

Databases of before the first release have the schemas 0001 to 0012 or release_0001, with other
tables; `storage.database` refuses those.
"""

import sqlalchemy as sa
from alembic import op

revision = "runs_0001"
down_revision = None
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_login_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_accounts")),
    )
    op.create_table(
        "audit_entries",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
    )
    op.create_index(op.f("ix_audit_entries_at"), "audit_entries", ["at"])
    op.create_table(
        "credentials",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("scope", sa.String(length=8), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("password_mark", sa.String(length=16), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credentials")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_credentials_token_hash")),
    )
    op.create_index(op.f("ix_credentials_owner"), "credentials", ["owner"])
    op.create_table(
        "runs",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("slug", sa.String(length=12), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("scenario", sa.String(length=32), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=True),
        sa.Column("dtype", sa.String(length=32), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("model", sa.JSON(), nullable=True),
        sa.Column("environment", sa.JSON(), nullable=False),
        sa.Column("timings_ms", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("pinned", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("parent_slug", sa.String(length=12), nullable=True),
        sa.Column("lineage", sa.String(length=8), nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("memory", sa.JSON(), nullable=True),
        sa.Column("floor", sa.JSON(), nullable=True),
        sa.Column("server", sa.BigInteger(), nullable=True),
        sa.Column("stored_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'cancelled', 'unfinished')",
            name=op.f("ck_runs_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("slug", name=op.f("uq_runs_slug")),
    )
    op.create_index(op.f("ix_runs_created_at"), "runs", ["created_at"])
    op.create_index(
        op.f("ix_runs_deleted_at_pinned_created_at_id"),
        "runs",
        ["deleted_at", "pinned", "created_at", "id"],
    )
    op.create_index(op.f("ix_runs_model_name"), "runs", ["model_name"])
    op.create_index(
        op.f("ix_runs_owner_deleted_at_stored_bytes"),
        "runs",
        ["owner", "deleted_at", "stored_bytes"],
    )
    op.create_index(op.f("ix_runs_parent_slug"), "runs", ["parent_slug"])
    op.create_index(op.f("ix_runs_state"), "runs", ["state"])
    is_named = sa.text("kind = 'samples' AND deleted_at IS NULL")
    op.create_index(
        "ix_runs_name",
        "runs",
        [sa.text("coalesce(owner, '')"), "title"],
        unique=True,
        sqlite_where=is_named,
        postgresql_where=is_named,
    )
    op.create_table(
        "prompts",
        sa.Column("run_id", ROW_ID, autoincrement=False, nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("scenario", sa.String(length=32), nullable=True),
        sa.Column("compressed_tokens", sa.BigInteger(), nullable=True),
        sa.Column("context_first", sa.BigInteger(), nullable=True),
        sa.Column("context_end", sa.BigInteger(), nullable=True),
        sa.Column("context", sa.Text(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=True),
        sa.Column("pieces", sa.LargeBinary(), nullable=True),
        sa.Column("own_indices", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_prompts_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_prompts")),
    )
    op.create_table(
        "results",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("run_id", ROW_ID, nullable=False),
        sa.Column("sample", sa.String(length=200), nullable=False),
        sa.Column("variant", sa.String(length=400), nullable=False),
        sa.Column("budget", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("for_good", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("stopped", sa.String(length=16), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("budget_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cache_bytes", sa.BigInteger(), nullable=True),
        sa.Column("full_cache_bytes", sa.BigInteger(), nullable=True),
        sa.Column("head_l1", sa.Double(), nullable=True),
        sa.Column("final_l1", sa.Double(), nullable=True),
        sa.Column("kl", sa.Double(), nullable=True),
        sa.Column("agreement", sa.Double(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.CheckConstraint("state IN ('done', 'failed')", name=op.f("ck_results_state")),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_results_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_results")),
        sa.UniqueConstraint(
            "run_id",
            "sample",
            "variant",
            "budget",
            name=op.f("uq_results_run_id_sample_variant_budget"),
        ),
    )
    op.create_table(
        "samples",
        sa.Column("run_id", ROW_ID, autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sample", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("context", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_samples_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_samples")),
        sa.UniqueConstraint("run_id", "sample", name=op.f("uq_samples_run_id_sample")),
    )
    op.create_table(
        "share_links",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("run_id", ROW_ID, nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("creator", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_share_links_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_share_links")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_share_links_token_hash")),
    )
    op.create_index(op.f("ix_share_links_run_id"), "share_links", ["run_id"])
    op.create_table(
        "tags",
        sa.Column("run_id", ROW_ID, autoincrement=False, nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_tags_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("pk_tags")),
    )
    op.create_index(op.f("ix_tags_name_run_id"), "tags", ["name", "run_id"])
    op.create_table(
        "variants",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("run_id", ROW_ID, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("method", sa.String(length=64), nullable=False),
        sa.Column("budget_tokens", sa.BigInteger(), nullable=True),
        sa.Column("agreement", sa.Double(), nullable=True),
        sa.Column("first_difference", sa.BigInteger(), nullable=True),
        sa.Column("answer_found", sa.Boolean(), nullable=True),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_variants_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_variants")),
        sa.UniqueConstraint("run_id", "position", name=op.f("uq_variants_run_id_position")),
    )
    op.create_index(op.f("ix_variants_method"), "variants", ["method"])
    op.create_index(
        op.f("ix_variants_run_id_method_budget_tokens"),
        "variants",
        ["run_id", "method", "budget_tokens"],
    )
    op.create_table(
        "arrays",
        sa.Column("variant_id", ROW_ID, autoincrement=False, nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("dtype", sa.String(length=8), nullable=False),
        sa.Column("shape", sa.JSON(), nullable=False),
        sa.Column("codec", sa.String(length=16), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["variant_id"], ["variants.id"], name=op.f("fk_arrays_variant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("variant_id", "name", name=op.f("pk_arrays")),
    )
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
