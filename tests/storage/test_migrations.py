"""A migration that fails changes nothing."""

from contextlib import closing

import pytest
from sqlalchemy import inspect

from storage.database import open_database
from tests.storage.conftest import with_next_schema

pytestmark = pytest.mark.slow


def test_a_migration_that_fails_halfway_leaves_the_database_as_it_was(
    new_url, tmp_path, monkeypatch
):
    url = new_url()
    open_database(url).close()
    with monkeypatch.context() as patched:
        with_next_schema(
            tmp_path,
            patched,
            "op.create_table('half', sa.Column('id', sa.Integer))",
            "raise RuntimeError('broken')",
        )
        with pytest.raises(RuntimeError, match="broken"):
            open_database(url)
    with closing(open_database(url)) as database:
        assert "half" not in inspect(database.engine).get_table_names()
