"""Every schema that was ever released leads to the tables of today and back, with its data."""

import json
import shutil
import zlib
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
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
    insert,
    inspect,
    select,
    update,
)

from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.records import Candidate, FollowUp, ForcedStep
from storage import library, mapping
from storage.codecs import EncodedArray
from storage.database import MIGRATIONS, downgrade, open_database
from storage.models import Array, Variant
from storage.recorder import Recorder
from storage.records import RunFilter
from storage.study_models import Base
from tests.storage.conftest import load
from tests.storage.first_release import (
    CREATED,
    FINISHED,
    SLUG,
    STARTED,
    UNFINISHED,
    closing_engine,
    make_first_release,
    migration_config,
)
from ui.services.live_runs import stored_snapshot

pytestmark = pytest.mark.slow

Rows = dict[str, list[dict[str, object]]]
# Tables of the full-text search are no mapped classes; test_library.py has their laws.
SEARCH = "run_search"


SCRIPTS = ScriptDirectory.from_config(migration_config())
REVISIONS = [script.revision for script in SCRIPTS.walk_revisions()]


def test_revisions_form_one_line():
    assert len(SCRIPTS.get_heads()) == 1
    assert len(SCRIPTS.get_bases()) == 1


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
def test_an_old_database_upgrades_with_its_data(new_url, revision):
    url = new_url()
    with closing_engine(url) as engine:
        with engine.begin() as connection:
            command.upgrade(migration_config(connection), revision)
        before = one_row_each(engine)
        assert before.keys() >= {"runs", "prompts", "variants", "arrays"}
        open_database(url).close()
        assert_kept(engine, before)
        assert revision_of(engine) == REVISIONS[0]


def revision_of(engine: Engine) -> str | None:
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def assert_kept(engine: Engine, before: Rows) -> None:
    """What these rows held is there; columns that this schema lacks do not count."""
    after = all_rows(engine)
    # Lists of a variant, which were columns of it.
    after["arrays"] = [row for row in after["arrays"] if row["dtype"] != "json"]
    for name, rows in before.items():
        if name in after:
            assert len(rows) == len(after[name])
            for row, now in zip(rows, after[name], strict=True):
                shared = row.keys() & now.keys()
                assert {key: now[key] for key in shared} == {key: row[key] for key in shared}
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []


def all_rows(engine: Engine) -> Rows:
    schema = MetaData()
    schema.reflect(engine)
    with engine.connect() as connection:
        return {
            table.name: [
                dict(row)
                for row in connection.execute(
                    select(table).order_by(*table.primary_key.columns)
                ).mappings()
            ]
            for table in schema.sorted_tables
            if table.name != "alembic_version" and not table.name.startswith(SEARCH)
        }


def test_the_newest_schema_leads_back_to_every_other_and_up_again(new_url):
    url = new_url()
    make_first_release(url)
    with closing_engine(url) as engine:
        first = all_rows(engine)
        for row in first["variants"]:
            row["tokens_per_second"] = None  # dropped on the way up
        assert found(url, "ÜNÏ there") == [SLUG]  # opens it, so migrates it
        newest = all_rows(engine)
        # The way to the first one takes each step; which is at fault, SQLite tells for both.
        for revision in REVISIONS[1:] if engine.dialect.name == "sqlite" else REVISIONS[-1:]:
            downgrade(url, revision)
            assert_kept(engine, first)
            assert revision_of(engine) == revision
            assert found(url, "ÜNÏ there") == [SLUG]
            assert all_rows(engine) == newest
        downgrade(url, REVISIONS[-1])
        assert all_rows(engine) == first


def found(url: str, words: str) -> list[str]:
    with closing(open_database(url)) as database, database.read() as session:
        runs, _ = library.list_runs(session, RunFilter(text=words))
    return [run.slug for run in runs]


def test_a_deleted_run_does_not_come_back_with_an_older_schema(new_url):
    url = new_url()
    make_first_release(url)
    with closing(open_database(url)) as database, database.write() as session:
        library.delete_runs(session, [SLUG], FINISHED)
    with closing_engine(url) as engine:
        downgrade(url, "0001")
        rows = all_rows(engine)
    assert [run["slug"] for run in rows["runs"]] == [UNFINISHED]
    assert [len(rows[name]) for name in ("prompts", "variants", "arrays")] == [1, 0, 0]


def test_a_run_of_the_first_release_opens_as_it_was(new_url):
    url = new_url()
    make_first_release(url)
    with closing(open_database(url)) as database:
        run, waiting = load(database, SLUG), load(database, UNFINISHED)
        assert Recorder(database).recover("The app stopped.") == 1
    request = CompareRequest(
        context="Over \x00 here.",
        question="Where is Ünï?",
        answer="here",
        variants=("full", "snapkv+critical:budget=2"),
        defaults={"alpha": "0.25"},
        max_new_tokens=2,
    )
    assert run.request == request
    assert (run.title, run.state, run.reason) == ("Where is Ünï?", "done", "")
    assert (run.created_at, run.started_at, run.finished_at) == (CREATED, STARTED, FINISHED)
    result = run.result
    assert (result.kind, result.finished, result.timings_ms) == ("compare", True, {"prefill": 12.5})
    assert result.model.evictable_layers == (0,)
    assert result.prompt.token_ids == (1, 40, 7, 2)
    assert result.prompt.pieces == ("<s>", "Over", " here.", "Where is Ünï?")
    full, evicted = result.variants
    assert (full.retained, full.perturbation, full.text) == (None, None, "in here")
    assert evicted.params == {"budget": 2, "alpha": 0.25, "pool": "max"}
    assert (evicted.token_texts, evicted.first_difference) == (("in", " there"), 1)
    assert evicted.receipt.warnings == ("The window is the whole budget.",)
    assert evicted.retained.bits == bytes([0b10010000])
    assert evicted.perturbation.head_l1.tolist() == [[0.5, 2.0]]
    assert evicted.perturbation.base_head_l1.tolist() == [[1.0, 1.5]]
    assert (evicted.perturbation.kl, evicted.perturbation.final_hidden_l1) == (0.75, 3.5)
    assert (dict(evicted.analysis), evicted.forced_steps, evicted.follow_ups) == ({}, (), ())
    assert (waiting.state, waiting.request.context) == ("queued", "waits")
    assert waiting.result.variants == []
    assert stored_snapshot(run).result == result


def test_columns_of_a_variant_become_its_document_and_arrays(new_url):
    url = new_url()
    step, follow_up = [[[7, "\x00", 0.5]], [[8, "b", 1.0]]], {
        "question": "And?", "text": "c", "token_ids": [9], "token_texts": ["c"],
        "stopped": "eos", "agreement": 0.5, "first_difference": None,
    }  # fmt: skip
    columns = {
        "kl": float("inf"), "first_difference": None, "warnings": ["Mind."], "stopped": "eos",
        "answer_scores": {"token_f1": 0.25}, "timings_ms": {"select": 1.5}, "params": {"alpha": 1},
        "token_ids": zlib.compress(b"\x07\x00\x00\x00"), "token_texts": packed(["a"]),
        "forced_steps": packed([step]), "follow_ups": packed([follow_up]),
        "text": "\ue0000000a", "full_cache_bytes": 2**40,
    }  # fmt: skip
    with closing_engine(url) as engine:
        with engine.begin() as connection:
            command.upgrade(migration_config(connection), "0010")
        one_row_each(engine)
        with engine.begin() as connection:
            connection.execute(
                update(Table("variants", MetaData(), autoload_with=connection)).values(columns)
            )
        with closing(open_database(url)) as database, database.read() as session:
            document = session.scalars(select(Variant.document)).one()
            rows = session.scalars(select(Array).where(Array.dtype == "json"))
            arrays = {
                each.name: EncodedArray("json", each.shape, "zlib", each.data) for each in rows
            }
    found = mapping.variant_record(document, arrays)
    assert (found.text, found.token_ids, found.token_texts) == ("\x00a", (7,), ("a",))
    assert found.forced_steps == (
        ForcedStep((Candidate(7, "\x00", 0.5),), (Candidate(8, "b", 1.0),)),
    )
    answer = {**follow_up, "token_ids": (9,), "token_texts": ("c",)}
    assert found.follow_ups == (FollowUp(**answer),)
    assert (found.stopped, found.first_difference) == ("eos", None)
    assert (found.answer_scores, found.timings_ms) == ({"token_f1": 0.25}, {"select": 1.5})
    assert (found.receipt.warnings, found.receipt.full_cache_bytes) == (("Mind.",), 2**40)
    assert document["perturbation"]["kl"] == "inf"


def packed(value: object) -> bytes:
    return zlib.compress(json.dumps(value).encode())


def one_row_each(engine: Engine) -> Rows:
    """Insert a row into every table of whatever schema this is; returns what was stored."""
    schema = MetaData()
    schema.reflect(engine)
    with engine.begin() as connection:
        for table in schema.sorted_tables:
            if table.name != "alembic_version" and not table.name.startswith(SEARCH):
                connection.execute(insert(table).values(sample_row(table)))
    return all_rows(engine)


SAMPLES: dict[type, object] = {
    DateTime: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    JSON: {"key": ["value", 1]},
    LargeBinary: zlib.compress(b"[]  "),  # a JSON text and a whole number of integers
    Boolean: True,
    Integer: 1,  # keys too: every foreign key then refers to the one row
    Float: 1,
}


def sample_row(table: Table) -> dict[str, object]:
    row: dict[str, object] = {}
    for column in table.columns:
        values = (value for kind, value in SAMPLES.items() if isinstance(column.type, kind))
        row[column.name] = "done" if column.name == "state" else next(values, "text")
    return row


def test_a_migration_that_fails_halfway_leaves_the_database_as_it_was(
    new_url, tmp_path, monkeypatch
):
    url = new_url()
    copied = Path(shutil.copytree(MIGRATIONS, tmp_path / "migrations"))
    (copied / "versions" / "9999_broken.py").write_text(
        f"import sqlalchemy as sa\nfrom alembic import op\n"
        f"revision = '9999'\ndown_revision = {REVISIONS[0]!r}\n"
        "def upgrade():\n"
        "    op.create_table('half', sa.Column('id', sa.Integer))\n"
        "    raise RuntimeError('broken')\n"
    )
    open_database(url).close()
    monkeypatch.setattr("storage.database.MIGRATIONS", copied)
    with pytest.raises(RuntimeError, match="broken"):
        open_database(url)
    monkeypatch.undo()
    with closing(open_database(url)) as database:
        assert "half" not in inspect(database.engine).get_table_names()
