"""Every schema that was ever released upgrades to the tables of today, with its data."""

from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    JSON,
    Boolean,
    DateTime,
    Engine,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    create_engine,
    event,
    insert,
    inspect,
    select,
)

from storage.database import MIGRATIONS, default_url, open_database
from storage.models import Base

# Tables of the full-text search are no mapped classes; test_library.py has their laws.
SEARCH = "run_search"


def config() -> Config:
    made = Config()
    made.set_main_option("script_location", str(MIGRATIONS))
    return made


REVISIONS = [script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()]


def test_revisions_form_one_line():
    assert len(ScriptDirectory.from_config(config()).get_heads()) == 1
    assert len(ScriptDirectory.from_config(config()).get_bases()) == 1


def test_migrations_from_blank_give_the_tables_of_the_models(tmp_path):
    database = open_database(default_url(tmp_path))
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "compare_server_default": True,
                "include_name": lambda name, *_: not str(name).startswith(SEARCH),
            },
        )
        assert compare_metadata(context, Base.metadata) == []
    # What alembic does not compare: checks, foreign key rules, key order.
    plain = create_engine("sqlite://")
    Base.metadata.create_all(plain)
    assert rules(database.engine) == rules(plain)
    plain.dispose()
    database.close()


def rules(engine: Engine) -> dict[str, object]:
    found = inspect(engine)
    return {
        name: (
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


@pytest.mark.parametrize("revision", REVISIONS)
def test_an_old_database_upgrades_with_its_data(tmp_path: Path, revision: str):
    engine = create_engine(default_url(tmp_path))

    @event.listens_for(engine, "connect")
    def foreign_keys_on(connection, _):
        connection.execute("PRAGMA foreign_keys = ON")

    with engine.begin() as connection:
        made = config()
        made.attributes["connection"] = connection
        command.upgrade(made, revision)
    before = one_row_each(engine)
    assert before.keys() >= {"runs", "prompts", "variants", "arrays"}
    engine.dispose()

    database = open_database(default_url(tmp_path))
    current = MetaData()
    current.reflect(database.engine)
    with database.engine.connect() as connection:
        for name, row in before.items():
            after = dict(connection.execute(select(current.tables[name])).mappings().one())
            shared = row.keys() & after.keys()
            assert {key: after[key] for key in shared} == {key: row[key] for key in shared}
        assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
        head = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    assert head == REVISIONS[0]
    database.close()


def one_row_each(engine: Engine) -> dict[str, dict[str, object]]:
    """Insert a row into every table of whatever schema this is; returns what was stored."""
    schema = MetaData()
    schema.reflect(engine)
    stored = {}
    with engine.begin() as connection:
        for table in schema.sorted_tables:
            if table.name != "alembic_version" and not table.name.startswith(SEARCH):
                connection.execute(insert(table).values(sample_row(table)))
                stored[table.name] = dict(connection.execute(select(table)).mappings().one())
    return stored


def sample_row(table: Table) -> dict[str, object]:
    row: dict[str, object] = {}
    for column in table.columns:
        if column.name == "state":
            row[column.name] = "done"
        elif isinstance(column.type, DateTime):
            row[column.name] = column.type.python_type(2026, 1, 2, 3, 4, 5)
        elif isinstance(column.type, JSON):
            row[column.name] = {"key": ["value", 1]}
        elif isinstance(column.type, LargeBinary):
            row[column.name] = b"\x00\xff"
        elif isinstance(column.type, Boolean | Integer | Float):
            row[column.name] = 1  # keys too: every foreign key then refers to the one row
        else:
            row[column.name] = "text"
    return row


def test_a_migration_that_fails_halfway_leaves_the_database_as_it_was(tmp_path, monkeypatch):
    home = tmp_path / "data"
    versions = tmp_path / "migrations" / "versions"
    versions.mkdir(parents=True)
    (versions.parent / "env.py").write_text((MIGRATIONS / "env.py").read_text())
    for path in (MIGRATIONS / "versions").glob("*.py"):
        (versions / path.name).write_text(path.read_text())
    (versions / "9999_broken.py").write_text(
        f"import sqlalchemy as sa\nfrom alembic import op\n"
        f"revision = '9999'\ndown_revision = {REVISIONS[0]!r}\n"
        "def upgrade():\n"
        "    op.create_table('half', sa.Column('id', sa.Integer))\n"
        "    raise RuntimeError('broken')\n"
    )
    open_database(default_url(home)).close()
    monkeypatch.setattr("storage.database.MIGRATIONS", versions.parent)
    with pytest.raises(RuntimeError, match="broken"):
        open_database(default_url(home))
    monkeypatch.undo()
    database = open_database(default_url(home))
    assert "half" not in inspect(database.engine).get_table_names()
    database.close()
