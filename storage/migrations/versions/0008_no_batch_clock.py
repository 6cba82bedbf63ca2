"""No tokens per second of a variant: it was the clock of the batch, alike for all of a run."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_column("variants", "tokens_per_second")


def downgrade() -> None:
    op.add_column("variants", sa.Column("tokens_per_second", sa.Double(), nullable=True))
