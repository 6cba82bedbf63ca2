"""Servers: which of several server processes an unfinished run belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("server", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "server")
