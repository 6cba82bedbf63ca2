"""Studies: what was asked, its samples, and one result per sample, variant and budget."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "studies",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("slug", sa.String(length=12), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.Column("model", sa.JSON(), nullable=True),
        sa.Column("environment", sa.JSON(), nullable=True),
        sa.Column("wanted", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
        sa.UniqueConstraint("owner", "name", name=op.f("uq_studies_owner_name")),
        sa.UniqueConstraint("slug", name=op.f("uq_studies_slug")),
    )
    op.create_index(op.f("ix_studies_created_at"), "studies", ["created_at"], unique=False)
    op.create_table(
        "study_samples",
        sa.Column("study_id", ROW_ID, autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sample", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("context", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["studies.id"],
            name=op.f("fk_study_samples_study_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("study_id", "position", name=op.f("pk_study_samples")),
        sa.UniqueConstraint("study_id", "sample", name=op.f("uq_study_samples_study_id_sample")),
    )
    op.create_table(
        "study_results",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("study_id", ROW_ID, nullable=False),
        sa.Column("sample", sa.String(length=200), nullable=False),
        sa.Column("variant", sa.String(length=400), nullable=False),
        sa.Column("budget", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
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
        sa.CheckConstraint("state IN ('done', 'failed')", name=op.f("ck_study_results_state")),
        sa.ForeignKeyConstraint(
            ["study_id"],
            ["studies.id"],
            name=op.f("fk_study_results_study_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_study_results")),
        sa.UniqueConstraint(
            "study_id",
            "sample",
            "variant",
            "budget",
            name=op.f("uq_study_results_study_id_sample_variant_budget"),
        ),
    )


def downgrade() -> None:
    op.drop_table("study_results")
    op.drop_table("study_samples")
    op.drop_table("studies")
