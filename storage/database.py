"""Opens the database: engine set-up, migrations, sessions."""

import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from filelock import FileLock
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    NullPool,
    create_engine,
    event,
    func,
    make_url,
    select,
)
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

from ckv_core.base.home import home_folder
from ckv_core.base.whole_file import beside
from ckv_core.errors import StorageError
from storage.sqlite import check_whole, sqlite_file

P = ParamSpec("P")
T = TypeVar("T")
MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_TIMEOUT_S = 30
BUSY_TRIES = 10  # of that time each
MOST_PAUSE_S = 0.15  # those who wait for SQLite look again every 0.1 s
CONNECT_TIMEOUT_S = 10
_ADVISORY_LOCK = 0x436B764C  # any number that no other program on that PostgreSQL uses
_ANY_CHARACTER = ("UTF8", "SQL_ASCII")
# Signs of a failure in the driver's message, and the sentence for it.
_SQLITE = {
    "not a database": "{name} is not a SQLite database; move it away or set CKV_DATABASE_URL to "
    "another file.",
    "malformed": "The database {name} is damaged; restore a backup or move it away.",
    "readonly": "The database {name} is read-only; make it and its folder writable.",
    "unable to open": "The database {name} cannot be opened; check the path and permissions.",
    "locked": "The database {name} is held by another program; close that and try again.",
    "disk I/O": "The disk that holds the database {name} cannot be written or read; see whether it "
    "is full or damaged.",
    "full": "The disk that holds the database {name} is full; free some space.",
}
_migrating = threading.Lock()  # alembic's context is one per process


def default_url(home: Path) -> str:
    """The SQLite database in the data folder."""
    url = URL.create("sqlite", database=str(home / "ckv.sqlite3"))
    return url.render_as_string(hide_password=False)


def database_url() -> str:
    """The database that the environment names."""
    return os.environ.get("CKV_DATABASE_URL", "").strip() or default_url(home_folder())


def open_database(url: str) -> "Database":
    """Open, create and migrate a SQLite or PostgreSQL database; several may do so at once.

    Raises:
        StorageError: no such driver, no database there, not writable, or a schema of
            another version.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StorageError(
            "CKV_DATABASE_URL is no database URL; write for example sqlite:////folder/ckv.sqlite3."
        ) from None
    if parsed.drivername == "postgres":  # as many hosting services write it
        parsed = parsed.set(drivername="postgresql")
    name = _display_name(parsed)
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise StorageError("CKV_DATABASE_URL takes a sqlite or postgresql URL, and no other.")
    try:
        if parsed.get_backend_name() == "sqlite":
            _prepare_file(parsed, name)
        _migrate(parsed, name)
        return Database(_create_engine(parsed), name)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise StorageError(
            f"The database {name} needs a driver that is not installed: {error}."
        ) from None
    except SQLAlchemyError as error:
        raise StorageError(_explain(error, name)) from error


@contextmanager
def opened(url: str = "") -> "Iterator[Database]":
    """This database, or the one that the environment names; raises as `open_database`."""
    with closing(open_database(url or database_url())) as database:
        yield database


class DatabaseBusyError(StorageError):
    """Another connection held SQLite's lock for as long as one waits for it."""


class Database:
    """An open, migrated database that hands out sessions.

    Attributes:
        server: random number of this opening, unlike others of the same PostgreSQL; None on
            SQLite, which has one server at a time.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        if engine.dialect.name == "postgresql":
            self.server: int | None = secrets.randbits(63)
            reading: dict[str, object] = {
                "isolation_level": "REPEATABLE READ",
                "postgresql_readonly": True,
            }
            writing: dict[str, object] = {"isolation_level": "READ COMMITTED"}
        else:
            self.server = None
            reading = {}
            # Take the write lock at once. A reader that turns writer midway fails if another
            # connection wrote in between; one that takes it first just waits.
            writing = {"sqlite_begin": "IMMEDIATE"}
        self._reading = sessionmaker(engine.execution_options(**reading))
        self._writing = sessionmaker(engine.execution_options(**writing))

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one consistent state and writes nothing; StorageError if it fails."""
        with self.explained(), self._reading() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that is committed at the end, or rolled back on any error; raises as `read`."""
        with self.explained(), self._writing.begin() as session:
            yield session

    @contextmanager
    def write_in_turn(self) -> Iterator[Session]:
        """As `write`, for one of many writes: the lock is then free for as long as it took.

        SQLite does not queue those who wait; without a pause the next write would be before them.
        """
        begin = time.monotonic()
        with self.write() as session:
            yield session
        time.sleep(min(time.monotonic() - begin, MOST_PAUSE_S))

    def read_with(
        self, query: Callable[Concatenate[Session, P], T], *values: P.args, **named: P.kwargs
    ) -> T:
        """What a query of one consistent state answers; raises as `read`."""
        with self.read() as session:
            return query(session, *values, **named)

    def write_with(
        self, change: Callable[Concatenate[Session, P], T], *values: P.args, **named: P.kwargs
    ) -> T:
        """What a change answers, once it is committed; raises as `write`.

        Where another program holds the database the change is tried again for some minutes.
        """
        for _ in range(BUSY_TRIES - 1):
            with suppress(DatabaseBusyError), self.write() as session:
                return change(session, *values, **named)
        with self.write() as session:
            return change(session, *values, **named)

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the library's errors into StorageErrors that say what to do."""
        try:
            yield
        except SQLAlchemyError as error:
            is_busy = isinstance(error, DBAPIError) and "database is locked" in str(error.orig)
            kind = DatabaseBusyError if is_busy else StorageError
            raise kind(_explain(error, self.name)) from error


def _explain(error: SQLAlchemyError, name: str) -> str:
    """The sentence for a failure of the database `name`."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    text = str(cause).splitlines()[0]
    for sign, sentence in _SQLITE.items():
        if isinstance(cause, sqlite3.Error) and sign in text:
            return sentence.format(name=name)
    return f"The database {name} failed: {text}."


def _display_name(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.set(query={}).render_as_string()  # without passwords; a query may hold one too


def _prepare_file(url: URL, name: str) -> None:
    """Refuse a file that is not whole; make a new one, which appears with all its tables."""
    file = sqlite_file(url)
    check_whole(file)
    if file.exists():
        return  # SQLite's own error has what is wrong with it
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"The folder {file.parent} for the database cannot be made ({error.strerror}); "
            "choose another with CKV_HOME or CKV_DATABASE_URL."
        ) from error
    if not os.access(file.parent, os.W_OK):
        return  # as above
    with FileLock(file.with_name(f".{file.name}.create.lock")), beside(file) as part:
        if not file.exists():
            _migrate(URL.create("sqlite", database=str(part)), name)
            part.replace(file)


def _create_engine(url: URL, *, migrating: bool = False) -> Engine:
    pool = NullPool if migrating else None
    if url.get_backend_name() == "postgresql":
        defaults = {"client_encoding": "utf8", "connect_timeout": CONNECT_TIMEOUT_S}
        connect = {key: value for key, value in defaults.items() if key not in url.query}
        return create_engine(url, poolclass=pool, pool_pre_ping=True, connect_args=connect)
    # The driver's own BEGIN comes too late (not before reads and DDL); `begin` sends ours.
    driver = {"timeout": BUSY_TIMEOUT_S, "isolation_level": None}
    engine = create_engine(url, poolclass=pool, connect_args=driver)

    @event.listens_for(engine, "connect")
    def set_up(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = NORMAL")
        # A migration may copy a table and drop the old one, which must not cascade.
        cursor.execute(f"PRAGMA foreign_keys = {'OFF' if migrating else 'ON'}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        kind = connection.get_execution_options().get("sqlite_begin", "DEFERRED")
        connection.exec_driver_sql(f"BEGIN {kind}")

    return engine


def _migrate(url: URL, name: str) -> None:
    """Bring a database to the newest schema."""
    known = schemas(MIGRATIONS)
    engine = _create_engine(url, migrating=True).execution_options(sqlite_begin="IMMEDIATE")
    with _migrating, engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            encoding = connection.scalar(select(func.current_setting("server_encoding")))
            if encoding not in _ANY_CHARACTER:
                raise StorageError(
                    f"{name} cannot hold every character (its encoding is {encoding}); make a "
                    "database with ENCODING 'UTF8'."
                )
        current = MigrationContext.configure(connection).get_current_heads()
        for schema in current:
            if schema not in known:
                raise StorageError(
                    f"{name} was made by another version of the app (schema {schema}). Export its "
                    "runs with that version (`ckv export --all --out FILE`), or start with another "
                    "database (CKV_DATABASE_URL or CKV_HOME)."
                )
        if current == (known[-1],):
            return
        config = _config(MIGRATIONS)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


@cache
def schemas(migrations: Path) -> list[str]:
    """From the first to the newest; alembic compiles every migration for it."""
    scripts = ScriptDirectory.from_config(_config(migrations))
    return [script.revision for script in scripts.walk_revisions()][::-1]


def _config(migrations: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    return config
