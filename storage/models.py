"""The tables; `python -m scripts.reference_docs` writes docs/reference/schema.md from them."""

import re
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    and_,
    func,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

SLUG_LENGTH = 12
ACTIVE_STATES = ("queued", "running")
END_STATES = ("done", "failed", "cancelled")
STATES = (*ACTIVE_STATES, *END_STATES, "unfinished")
RESULT_STATES = ("running", "done", "failed")
SAMPLES = "samples"  # kind of a run of many samples
JsonObject = dict[str, Any]
ESCAPE = "\ue000"
_NOT_STORABLE = re.compile(f"[\x00\ud800-\udfff{ESCAPE}]")
_ESCAPED = re.compile(f"{ESCAPE}([0-9a-f]{{4}})")

# Only an INTEGER key gives SQLite its automatic row id.
ROW_ID = BigInteger().with_variant(Integer(), "sqlite")


class UtcDateTime(TypeDecorator[datetime]):
    """Aware datetimes, kept in UTC; SQLite itself knows no time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Convert to UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("A stored time needs a time zone.")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Say that it is UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class AnyText(TypeDecorator[str]):
    r"""Any Python text, byte for byte.

    PostgreSQL's text cannot hold NUL and UTF-8 cannot hold lone surrogates. Each such character
    is stored as U+E000 and four hex digits (U+E000 itself too), so what is read equals what was
    written. All other text is stored as it is and can be searched as it is.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        """Escape what a database cannot hold."""
        if value is None:
            return None
        return _NOT_STORABLE.sub(lambda match: f"{ESCAPE}{ord(match[0]):04x}", value)

    def process_result_value(self, value: str | None, _dialect: Dialect) -> str | None:
        """Undo the escapes."""
        if value is None or ESCAPE not in value:
            return value
        return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)


class Base(DeclarativeBase):
    """Registry of the tables; constraint names are fixed so that migrations can address them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it once, nobody changes it
        str: AnyText,
        int: BigInteger,
        float: Double,
        bytes: LargeBinary,
        datetime: UtcDateTime,
        JsonObject: JSON(none_as_null=True),
        list[str]: JSON(none_as_null=True),
        list[int]: JSON(none_as_null=True),
    }


class Run(Base):
    """One comparison of one sample or many: its request, its state, and common facts."""

    __tablename__ = "runs"
    __table_args__ = (
        CheckConstraint(f"state IN {STATES}", name="state"),
        Index(None, "deleted_at", "created_at", "id"),
        Index(None, "owner", "deleted_at", "stored_bytes"),
    )

    id: Mapped[int] = mapped_column(ROW_ID, primary_key=True, doc="internal; links use the slug")
    slug: Mapped[str] = mapped_column(
        String(SLUG_LENGTH), unique=True, doc="random name in links, 12 characters of a-z and 0-9"
    )
    title: Mapped[str] = mapped_column(
        doc="first words of the question unless given; of many samples the study's name, which is "
        "unique among its owner's runs of that kind"
    )
    state: Mapped[str] = mapped_column(
        String(16),
        index=True,
        doc="queued, running, done, failed or cancelled; of many samples unfinished in place of "
        "the last two, and it can be resumed",
    )
    reason: Mapped[str] = mapped_column(default="", doc="why it ended early; else empty")
    created_at: Mapped[datetime] = mapped_column(index=True, doc="UTC")
    started_at: Mapped[datetime | None] = mapped_column(doc="UTC; null while queued")
    finished_at: Mapped[datetime | None] = mapped_column(doc="UTC; null until an end state")
    scenario: Mapped[str] = mapped_column(String(32), doc="as requested: regular or context-only")
    model_name: Mapped[str] = mapped_column(
        index=True, doc="as requested; the served model's own name once it is loaded"
    )
    prompt_tokens: Mapped[int | None] = mapped_column(doc="prompt length in tokens")
    complete: Mapped[bool] = mapped_column(
        default=False, doc="the worker reported the whole result"
    )
    request: Mapped[JsonObject] = mapped_column(
        doc="RunRequest without its texts, which are in samples; of many samples the study "
        "file's values without its name, which is the title"
    )
    model: Mapped[JsonObject | None] = mapped_column(doc="ModelInfo")
    environment: Mapped[JsonObject] = mapped_column(
        default=dict, doc="versions of python, torch, ..."
    )
    timings_ms: Mapped[JsonObject] = mapped_column(default=dict, doc="milliseconds per stage")
    note: Mapped[str] = mapped_column(server_default=text("''"), doc="the reader's own words")
    deleted_at: Mapped[datetime | None] = mapped_column(
        doc="UTC; then nobody sees it, and it can be restored for ten minutes"
    )
    owner: Mapped[str | None] = mapped_column(doc="the user who made it; null without logins")
    kind: Mapped[str] = mapped_column(String(16), doc="compare, sweep or samples")
    memory: Mapped[JsonObject | None] = mapped_column(doc="bytes, estimated and measured")
    floor: Mapped[JsonObject | None] = mapped_column(
        doc="RoundingFloor: layer_hidden_l1 [layers], kl in nats; null until measured"
    )
    server: Mapped[int | None] = mapped_column(
        doc="random number of the server process that runs or ran it; null on SQLite, and if "
        "imported"
    )
    stored_bytes: Mapped[int] = mapped_column(
        server_default=text("0"),
        doc="about, of all its rows; counted when it is made, noted on, and over",
    )


# Of runs that are not deleted: a deletion can be undone for a while.
ALIVE = Run.deleted_at.is_(None)
OF_SAMPLES = Run.kind == SAMPLES
_NAMED = and_(OF_SAMPLES, ALIVE)
Index(
    "ix_runs_name",
    func.coalesce(Run.owner, ""),
    Run.title,
    unique=True,
    sqlite_where=_NAMED,
    postgresql_where=_NAMED,
)


class SampleRow(Base):
    """One sample of a run: its texts, and of the only sample of a run its tokens."""

    # Small columns first: SQLite reads a row from its start and can then stop before the big ones.
    __tablename__ = "samples"
    __table_args__ = (UniqueConstraint("run_id", "sample"),)

    run_id: Mapped[int] = mapped_column(
        ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    position: Mapped[int] = mapped_column(
        Integer, primary_key=True, autoincrement=False, doc="0, 1, ... in a random order"
    )
    sample: Mapped[str] = mapped_column(String(200), doc="its id; empty for the only sample")
    question: Mapped[str] = mapped_column(doc="as typed; empty for none")
    answers: Mapped[list[str]] = mapped_column(doc="expected answers")
    details: Mapped[JsonObject] = mapped_column(
        doc="metric, source, tags, answer_prefix, max_new_tokens, choices, evidence and protect"
    )
    digest: Mapped[str | None] = mapped_column(
        String(64), doc="SHA-256 of all that it is, in hex; null for the only sample"
    )
    context: Mapped[str] = mapped_column(doc="the long text as typed")
    prompt: Mapped[bytes | None] = mapped_column(
        doc="the tokenised prompt as in docs/reference/result_json.md: zlib of JSON; null of one "
        "of many samples, and until the model is loaded"
    )
    own_indices: Mapped[bytes | None] = mapped_column(
        doc="kept positions given with the request: zlib of a JSON list of documents as in "
        "docs/how-to/compare_with_kvpress.md; null without any"
    )


class ResultRow(Base):
    """One sample at one variant and budget; a failed one is written over when it is retried."""

    # The document last: SQLite reads a row from its start and can then stop before it.
    __tablename__ = "results"
    __table_args__ = (
        UniqueConstraint("run_id", "sample", "variant", "budget"),
        CheckConstraint(f"state IN {RESULT_STATES}", name="state"),
        Index(None, "run_id", "method", "budget_tokens"),
    )

    id: Mapped[int] = mapped_column(ROW_ID, primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    sample: Mapped[str] = mapped_column(String(200), doc="id of the sample")
    variant: Mapped[str] = mapped_column(doc="SPEC; of many samples without the budget")
    budget: Mapped[str] = mapped_column(
        String(32), doc="as in the study file; empty for the full cache, and of one sample"
    )
    position: Mapped[int] = mapped_column(
        Integer, default=0, doc="0, 1, ... as shown; 0 of many samples"
    )
    method: Mapped[str] = mapped_column(String(64), index=True, doc="e.g. snapkv")
    state: Mapped[str] = mapped_column(String(8), doc="running, done or failed")
    reason: Mapped[str] = mapped_column(default="", doc="why it failed; else empty")
    for_good: Mapped[bool] = mapped_column(
        default=False, doc="it failed and would fail again, so it is not tried again"
    )
    finished_at: Mapped[datetime | None] = mapped_column(doc="UTC; null of one sample")
    score: Mapped[float | None] = mapped_column(
        doc="0 to 1; null where it failed, or of one sample"
    )
    stopped: Mapped[str | None] = mapped_column(
        String(16), doc="eos or length; null while it runs, and where it failed"
    )
    prompt_tokens: Mapped[int | None] = mapped_column(doc="prompt length in tokens")
    budget_tokens: Mapped[int | None] = mapped_column(
        doc="requested entries per KV head (mean); null until selection, and of many samples"
    )
    figures: Mapped[JsonObject | None] = mapped_column(
        doc="of many samples what was measured, by key of the metrics in "
        "docs/reference/definitions.md; null of one sample"
    )
    agreement: Mapped[float | None] = mapped_column(
        doc="share of the full cache's tokens reproduced before the first difference; null of many "
        "samples"
    )
    first_difference: Mapped[int | None] = mapped_column(
        doc="index of the first generated token that differs; null for none"
    )
    answer_found: Mapped[bool | None] = mapped_column(
        doc="null without an expected answer, and of many samples"
    )
    text: Mapped[str] = mapped_column(doc="generated")
    document: Mapped[JsonObject | None] = mapped_column(
        doc="what else docs/reference/result_json.md has of a variant, but for what is in arrays; "
        "null of many samples"
    )


class Array(Base):
    """A large part of a result: numbers, or a list as in docs/reference/result_json.md."""

    __tablename__ = "arrays"

    result_id: Mapped[int] = mapped_column(
        ForeignKey("results.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    name: Mapped[str] = mapped_column(
        String(32),
        primary_key=True,
        doc="retained [layers, kv_heads, positions]: bits of numpy.packbits over the last axis; "
        "<f4: head_l1 and base_head_l1 [layers, query_heads], layer_hidden_l1 [layers], the "
        "quantities of docs/reference/definitions.md by name; <i8: held [2, tokens], entries and "
        "bytes; "
        "<u4: evicted [entries, 4], step, layer, KV head and position; and lists as JSON: "
        "token_ids, token_texts, forced_steps, follow_ups, sampled_texts",
    )
    shape: Mapped[list[int]] = mapped_column(doc="sizes of the axes")
    data: Mapped[bytes] = mapped_column(doc="zlib of the array in C order, or of the JSON text")


class Credential(Base):
    """A secret that opens something until it expires or is revoked.

    That is a browser's session, an API token, or a link that shows one run to everybody.
    """

    __tablename__ = "credentials"

    id: Mapped[int] = mapped_column(ROW_ID, primary_key=True)
    token_hash: Mapped[str] = mapped_column(
        String(64), unique=True, doc="SHA-256 of the token in hex; the token is not stored"
    )
    kind: Mapped[str] = mapped_column(String(8), doc="session, token or share")
    owner: Mapped[str | None] = mapped_column(
        index=True, doc="the user who logs in with it, or made the link; null without logins"
    )
    run_id: Mapped[int | None] = mapped_column(
        ForeignKey("runs.id", ondelete="CASCADE"), index=True, doc="of a share link: what it opens"
    )
    scope: Mapped[str] = mapped_column(String(8), doc="read, write, or all (a session)")
    name: Mapped[str] = mapped_column(default="", doc="what its owner calls a token; else empty")
    password_mark: Mapped[str | None] = mapped_column(
        String(16), doc="of a session: marks the password with which it began"
    )
    created_at: Mapped[datetime] = mapped_column(doc="UTC")
    expires_at: Mapped[datetime | None] = mapped_column(doc="UTC; null for never")
    revoked_at: Mapped[datetime | None] = mapped_column(doc="UTC; null while it is open")
    last_used_at: Mapped[datetime | None] = mapped_column(doc="UTC, to the minute; null for never")


class Account(Base):
    """What the app knows of a user beside the users' file."""

    __tablename__ = "accounts"

    name: Mapped[str] = mapped_column(primary_key=True, doc="as in the users' file")
    disabled_at: Mapped[datetime | None] = mapped_column(doc="UTC; null while the user may log in")
    last_login_at: Mapped[datetime | None] = mapped_column(doc="UTC; with a password")


class AuditEntry(Base):
    """Who did what; no text of a run. The oldest go when there are too many."""

    __tablename__ = "audit_entries"

    id: Mapped[int] = mapped_column(ROW_ID, primary_key=True)
    at: Mapped[datetime] = mapped_column(index=True, doc="UTC")
    actor: Mapped[str | None] = mapped_column(
        doc="the user; null for the one user without logins, a share link or the command line"
    )
    action: Mapped[str] = mapped_column(String(32), doc="e.g. deleted, as storage/audit.py lists")
    target: Mapped[str] = mapped_column(doc="slug of a run, name of a user, or number of a token")
