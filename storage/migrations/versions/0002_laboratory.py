"""Laboratory: kinds of runs, measured memory, forced steps, follow-up answers."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runs",
        sa.Column("kind", sa.String(length=16), nullable=False, server_default="compare"),
    )
    op.add_column("runs", sa.Column("memory", sa.JSON(), nullable=True))
    op.add_column("variants", sa.Column("answer_scores", sa.JSON(), nullable=True))
    op.add_column("variants", sa.Column("forced_steps", sa.LargeBinary(), nullable=True))
    op.add_column("variants", sa.Column("follow_ups", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    for name in ("follow_ups", "forced_steps", "answer_scores"):
        op.drop_column("variants", name)
    for name in ("memory", "kind"):
        op.drop_column("runs", name)
