"""Runs, prompts, variants and arrays. A released migration is never edited."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
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
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'cancelled')",
            name=op.f("ck_runs_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("slug", name=op.f("uq_runs_slug")),
    )
    op.create_index(op.f("ix_runs_created_at"), "runs", ["created_at"], unique=False)
    op.create_index(op.f("ix_runs_model_name"), "runs", ["model_name"], unique=False)
    op.create_index(op.f("ix_runs_state"), "runs", ["state"], unique=False)
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
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_prompts_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_prompts")),
    )
    op.create_table(
        "variants",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("run_id", ROW_ID, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("method", sa.String(length=64), nullable=False),
        sa.Column("critical", sa.Boolean(), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("budget_tokens", sa.BigInteger(), nullable=True),
        sa.Column("requested_entries", sa.BigInteger(), nullable=True),
        sa.Column("retained_entries", sa.BigInteger(), nullable=True),
        sa.Column("cache_bytes", sa.BigInteger(), nullable=True),
        sa.Column("full_cache_bytes", sa.BigInteger(), nullable=True),
        sa.Column("warnings", sa.JSON(), nullable=True),
        sa.Column("stopped", sa.String(length=16), nullable=True),
        sa.Column("agreement", sa.Double(), nullable=True),
        sa.Column("first_difference", sa.BigInteger(), nullable=True),
        sa.Column("answer_found", sa.Boolean(), nullable=True),
        sa.Column("tokens_per_second", sa.Double(), nullable=True),
        sa.Column("timings_ms", sa.JSON(), nullable=False),
        sa.Column("kl", sa.Double(), nullable=True),
        sa.Column("final_hidden_l1", sa.Double(), nullable=True),
        sa.Column("improved_head_share", sa.Double(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("token_texts", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_variants_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_variants")),
        sa.UniqueConstraint("run_id", "position", name=op.f("uq_variants_run_id_position")),
    )
    op.create_index(op.f("ix_variants_method"), "variants", ["method"], unique=False)
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
