"""The rounding floor: how far rounding alone moves a run's first decoding step."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("floor", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "floor")
