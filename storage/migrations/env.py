"""Alembic's entry: migrates over the connection that storage.database hands in."""

from alembic import context

from storage.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite cannot alter a column in place: batch operations copy the table instead.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
