"""What a failure of the database means, and what to do: one sentence each."""

import sqlite3

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ckv_core.errors import StorageError

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
_POSTGRESQL = {
    "password authentication failed": "PostgreSQL refused the user or the password of {name}; "
    "correct CKV_DATABASE_URL.",
    'FATAL:  database "': "PostgreSQL has no database {name}; create it, or correct "
    "CKV_DATABASE_URL.",
    "permission denied": "The user of {name} may not make or change tables there; make that user "
    "the owner of the database.",
    "Connection refused": "No PostgreSQL answers at {name}; start it, or correct CKV_DATABASE_URL.",
    "resolve host": "The host of {name} is not known; correct CKV_DATABASE_URL.",
    "timeout expired": "PostgreSQL at {name} does not answer; check the host and the network.",
    "too many clients": "PostgreSQL at {name} takes no more connections; raise its max_connections "
    "or run fewer servers.",
    "terminating connection": "PostgreSQL ended the connection to {name}; try again.",
    "No space left": "The disk of the PostgreSQL at {name} is full; free some space.",
}


def explain(error: SQLAlchemyError, name: str) -> str:
    """The sentence for a failure of the database `name`."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    text = str(cause).splitlines()[0]
    for sign, sentence in (_SQLITE if isinstance(cause, sqlite3.Error) else _POSTGRESQL).items():
        if sign in text:
            return sentence.format(name=name)
    return f"The database {name} failed: {text}."


class DatabaseBusyError(StorageError):
    """Another connection held SQLite's lock for as long as one waits for it."""


def failure(error: SQLAlchemyError, name: str) -> StorageError:
    """What to raise for a failure of the database `name`."""
    is_busy = isinstance(error, DBAPIError) and "database is locked" in str(error.orig)
    return (DatabaseBusyError if is_busy else StorageError)(explain(error, name))
