"""Laboratory: kinds of runs, measured memory, forced steps, follow-up answers."""

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
