"""The migrations give the tables of the models; one that fails changes nothing."""

from contextlib import closing

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, inspect

from storage.database import open_database
from storage.models import Base
from tests.storage.conftest import with_next_schema

pytestmark = pytest.mark.slow

# Tables of the full-text search are no mapped classes; test_library.py has their laws.
SEARCH = "run_search"


@pytest.mark.filterwarnings("ignore:.*expression-based index")  # SQLite does not compare it
def test_migrations_from_blank_give_the_tables_of_the_models(new_url):
    database = open_database(new_url())
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "compare_server_default": True,
                "include_name": lambda name, *_: SEARCH not in str(name),
            },
        )
        assert compare_metadata(context, Base.metadata) == []
    # What alembic does not compare: checks, foreign key rules, key order.
    plain = create_engine(new_url())
    Base.metadata.create_all(plain)
    assert rules(database.engine) == rules(plain)
    plain.dispose()
    database.close()


def rules(engine: Engine) -> dict[str, object]:
    found = inspect(engine)
    return {
        name: (
            [column["name"] for column in found.get_columns(name)],
            sorted(check["sqltext"] for check in found.get_check_constraints(name)),
            sorted(
                str(key["options"]) + str(key["constrained_columns"])
                for key in found.get_foreign_keys(name)
            ),
            found.get_pk_constraint(name)["constrained_columns"],
        )
        for name in found.get_table_names()
        if name != "alembic_version" and not name.startswith(SEARCH)
    }


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
