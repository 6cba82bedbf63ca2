"""A database as the first release left it: its migration, and rows written down literally.

Nothing here may come from today's models or codecs: they are what the rows are tested against.
"""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, MetaData, create_engine, event, insert

from storage.database import MIGRATIONS

CREATED = datetime(2026, 11, 21, 10, 0, 1, 250_000, tzinfo=UTC)
STARTED = datetime(2026, 11, 21, 10, 0, 2, tzinfo=UTC)
FINISHED = datetime(2026, 11, 21, 10, 0, 9, 750_000, tzinfo=UTC)
SLUG = "k3x9a7m2p0qz"
UNFINISHED = "0dz81hfw55tn"


def _texts(*pieces: str) -> bytes:
    quoted = ", ".join(f'"{piece}"' for piece in pieces)
    return zlib.compress(f"[{quoted}]".encode())


def _ints(*values: int) -> bytes:
    return zlib.compress(struct.pack(f"<{len(values)}i", *values))


def _floats(*values: float) -> bytes:
    return zlib.compress(struct.pack(f"<{len(values)}f", *values))


# fmt: off
_REQUEST = {
    "scenario": "regular", "model": "SmolLM2-135M-Instruct", "max_new_tokens": 2,
    "variants": ["full", "snapkv+critical:budget=2"], "defaults": {"alpha": "0.25"},
    "ignore_eos": False, "device": "auto", "dtype": "auto",
}
_MODEL = {
    "name": "SmolLM2-135M-Instruct", "sha256": "ab" * 32,
    "layers": 1, "query_heads": 2, "kv_heads": 1, "head_dim": 64,
    "dtype": "float32", "device": "cpu", "evictable_layers": [0], "context_limit": 8192,
}
_RUN = {
    "reason": "", "scenario": "regular", "model_name": "SmolLM2-135M-Instruct",
    "request": _REQUEST,
}
_VARIANT = {
    "run_id": 7, "agreement": None, "first_difference": None, "answer_found": True,
    "tokens_per_second": 21.5, "timings_ms": {"decode": 93.0}, "warnings": [],
    "full_cache_bytes": 2048, "stopped": "length",
    "kl": None, "final_hidden_l1": None, "improved_head_share": None,
}
_ARRAY = {"variant_id": 32, "dtype": "<f4", "codec": "zlib"}
ROWS: dict[str, list[dict[str, object]]] = {
    "runs": [
        _RUN | {
            "id": 7, "slug": SLUG, "title": "Where is Ünï?", "state": "done", "complete": True,
            "created_at": CREATED, "started_at": STARTED, "finished_at": FINISHED,
            "device": "cpu", "dtype": "float32", "prompt_tokens": 4, "model": _MODEL,
            "environment": {"python": "3.11.7", "app": "0.1"}, "timings_ms": {"prefill": 12.5},
        },
        _RUN | {
            "id": 9, "slug": UNFINISHED, "title": "Untitled run", "state": "queued",
            "created_at": FINISHED, "started_at": None, "finished_at": None, "complete": False,
            "device": None, "dtype": None, "prompt_tokens": None, "model": None,
            "environment": {}, "timings_ms": {},
        },
    ],
    "prompts": [
        {
            "run_id": 7, "question": "Where is Ünï?", "answer": "here", "scenario": "regular",
            "compressed_tokens": 4, "context_first": 1, "context_end": 3,
            "context": "Over \ue0000000 here.",  # a NUL, as the first release wrote it
            "token_ids": _ints(1, 40, 7, 2),
            "pieces": _texts("<s>", "Over", " here.", "Where is Ünï?"),
        },
        {
            "run_id": 9, "question": "", "answer": "", "scenario": None,
            "compressed_tokens": None, "context_first": None, "context_end": None,
            "context": "waits", "token_ids": None, "pieces": None,
        },
    ],
    "variants": [
        _VARIANT | {
            "id": 31, "position": 0, "spec": "full", "label": "Full cache", "method": "full",
            "critical": False, "params": {}, "budget_tokens": 4,
            "requested_entries": 4, "retained_entries": 4, "cache_bytes": 2048,
            "text": "in here", "token_ids": _ints(5, 6), "token_texts": _texts("in", " here"),
        },
        _VARIANT | {
            "id": 32, "position": 1, "spec": "snapkv+critical:budget=2",
            "label": "SnapKV + CriticalKV", "method": "snapkv", "critical": True,
            "params": {"budget": 2, "alpha": 0.25, "pool": "max"}, "budget_tokens": 2,
            "requested_entries": 2, "retained_entries": 2, "cache_bytes": 1024,
            "warnings": ["The window is the whole budget."],
            "agreement": 0.5, "first_difference": 1,
            "kl": 0.75, "final_hidden_l1": 3.5, "improved_head_share": 0.5,
            "text": "in there", "token_ids": _ints(5, 8), "token_texts": _texts("in", " there"),
        },
    ],
    "arrays": [
        {
            "variant_id": 32, "name": "retained", "dtype": "bool", "shape": [1, 1, 4],
            "codec": "bits+zlib", "data": zlib.compress(bytes([0b10010000])),
        },
        _ARRAY | {"name": "head_l1", "shape": [1, 2], "data": _floats(0.5, 2.0)},
        _ARRAY | {"name": "base_head_l1", "shape": [1, 2], "data": _floats(1.0, 1.5)},
        _ARRAY | {"name": "layer_hidden_l1", "shape": [1], "data": _floats(3.5)},
    ],
}
# fmt: on


def migration_config(connection: Connection | None = None) -> Config:
    """What alembic's commands take."""
    made = Config()
    made.set_main_option("script_location", str(MIGRATIONS))
    made.attributes["connection"] = connection
    return made


@contextmanager
def closing_engine(url: str) -> Iterator[Engine]:
    """An engine without the app's set-up, but with SQLite's foreign keys kept."""
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def foreign_keys_on(connection: Any, _: object) -> None:
            connection.execute("PRAGMA foreign_keys = ON")

    try:
        yield engine
    finally:
        engine.dispose()


def make_first_release(url: str) -> None:
    """Fill a blank database with the schema and the rows of the first release."""
    with closing_engine(url) as engine, engine.begin() as connection:
        command.upgrade(migration_config(connection), "0001")
        schema = MetaData()
        schema.reflect(connection)
        for name, rows in ROWS.items():
            for row in rows:
                connection.execute(insert(schema.tables[name]).values(row))
