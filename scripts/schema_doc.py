"""The tables of the database as a page, docs/reference/schema.md."""

from collections.abc import Iterator

from sqlalchemy import CheckConstraint, Column, Table, UniqueConstraint
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import Mapper

from storage.models import Base

INTRO = """\
# Database schema

Generated from `storage/models.py` by `python -m scripts.reference_docs`; do not edit by hand.

SQLite by default (WAL mode, foreign keys on), PostgreSQL by `CKV_DATABASE_URL`. Alembic
migrations in `storage/migrations/versions` bring a database to this schema whenever it is opened.
Times are UTC. Text columns hold any text. NUL, lone surrogates and U+E000 itself are stored as
U+E000 and four hex digits. JSON columns hold finite numbers.
"""


def schema_markdown() -> str:
    return "\n".join([INTRO, *(_table_section(mapper) for mapper in _mappers())])


def _mappers() -> list[Mapper[Base]]:
    order = {table: index for index, table in enumerate(Base.metadata.sorted_tables)}
    return sorted(Base.registry.mappers, key=lambda mapper: order[_table(mapper)])


def _table(mapper: Mapper[Base]) -> Table:
    table = mapper.local_table
    if not isinstance(table, Table):
        raise TypeError(f"{mapper} is mapped to no table")
    return table


def _table_section(mapper: Mapper[Base]) -> str:
    table = _table(mapper)
    lines = [
        f"## {table.name}",
        "",
        (mapper.class_.__doc__ or "").strip(),
        "",
        *(_column_line(column) for column in table.columns),
        "",
        *(f"- {line}" for line in _table_rules(table)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _column_line(column: Column[object]) -> str:
    kind = column.type.compile(dialect=sqlite.dialect())
    notes = [column.doc] if column.doc else []
    notes += ["primary key"] if column.primary_key else []
    notes += [f"refers to {key.target_fullname}, deleted with it" for key in column.foreign_keys]
    return f"- `{column.name}` {kind}{' or null' if column.nullable else ''}: {'; '.join(notes)}"


def _table_rules(table: Table) -> Iterator[str]:
    for constraint in sorted(table.constraints, key=lambda item: str(item.name)):
        if isinstance(constraint, UniqueConstraint):
            yield f"unique: {', '.join(column.name for column in constraint.columns)}"
        elif isinstance(constraint, CheckConstraint):
            yield f"check: `{constraint.sqltext}`"
    for index in sorted(table.indexes, key=lambda item: str(item.name)):
        yield f"index: {', '.join(column.name for column in index.columns)}"
