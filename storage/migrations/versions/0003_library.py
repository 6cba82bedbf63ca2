"""Library: notes, tags, pins, lineage, undo of delete, full-text search."""

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
