"""Own indices: kept positions that came with a request."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("prompts", sa.Column("own_indices", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("prompts", "own_indices")
