"""`ckv users|tokens|audit|backup`: what the page /admin does, and the database's copy."""

import getpass
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option, Typer

from ckv_core.base.terminal import say
from ckv_core.cli.options import command
from ckv_core.errors import CkvError, ConfigError
from storage import audit, credentials, library
from storage.audit import KEPT_ENTRIES
from storage.database import database_url, opened
from storage.sqlite import check_whole, copy_database, database_file
from ui.users import ADMIN, HASHER, read_users

app = Typer()
users = Typer(
    name="users", help="Make, disable or enable users, or give one the runs that nobody owns."
)
tokens = Typer(name="tokens", help="Make, list and revoke API tokens.")
UserArgument = Annotated[str, Argument(metavar="USER")]
FileArgument = Annotated[Path, Argument(metavar="FILE")]


@command(tokens, "create")
def _create(
    user: UserArgument,
    name: Annotated[str, Option(metavar="TEXT", help="what to call it")] = "command line",
    scope: Literal["read", "write"] = "read",
    days: Annotated[
        int | None,
        Option(metavar="N", min=1, max=3650, help="that it works; default: for ever"),
    ] = None,
) -> None:
    """Make a token, and print it this once."""
    _check_known(user)
    values = {"owner": user, "scope": scope, "name": " ".join(name.split())}
    now = datetime.now(UTC)
    with opened() as database, database.write() as session:
        say(credentials.create(session, None, "token", now=now, days=days, **values))


@command(tokens, "list")
def _list(user: Annotated[str | None, Argument(metavar="[USER]")] = None) -> None:
    """List the tokens of all, or of one user."""
    now = datetime.now(UTC)
    with opened() as database, database.read() as session:
        of = {"owner": user} if user else {}
        every = credentials.list_credentials(session, kind="token", **of)
    lines = [
        f"{token.id}  {token.owner}  {token.scope}  expires {_date(token.expires_at)}  "
        f"last used {_date(token.last_used_at)}  {token.name}"
        for token in every
        if token.is_open(now)
    ]
    say("\n".join(lines) or "There is no token.")


@command(tokens, "revoke")
def _revoke(
    number: Annotated[int, Argument(metavar="NUMBER", help="as `ckv tokens list` prints it")],
) -> None:
    """End a token."""
    with opened() as database, database.write() as session:
        closed = credentials.revoke(session, None, datetime.now(UTC), id=number, kind="token")
        if closed is None:
            raise CkvError(f"There is no open token {number}; see `tokens list`.")
    say(f"Token {closed.id} of {closed.owner} opens nothing any more.")


@command(users, "line")
def _line(
    user: UserArgument, admin: Annotated[bool, Option("--admin", help="an administrator")] = False
) -> None:
    """Ask for a password, and print a user's line for the file that CKV_AUTH=@FILE names."""
    if ":" in user or not user.strip() or user.startswith("#"):
        raise ConfigError("The name is empty, has a colon or starts with #.")
    password = getpass.getpass(f"Password of {user}: ")
    if not password:
        raise ConfigError("The password is empty; nothing was made.")
    if sys.stdin.isatty() and getpass.getpass("The same again: ") != password:
        raise ConfigError("The two passwords differ; nothing was made.")
    say(f"{user}:{HASHER.hash(password)}{f':{ADMIN}' if admin else ''}")


@command(users, "takeover")
def _take_over(user: UserArgument) -> None:
    """Give a user the runs and studies that nobody owns."""
    _check_known(user)
    with opened() as database, database.write() as session:
        runs = library.take_over(session, user, None)
    say(f"{runs:,} runs are {user}'s now.")


@command(users, "disable")
def _disable(user: UserArgument) -> None:
    """Disable a user, and end the open sessions and tokens."""
    place = _set_disabled(user, datetime.now(UTC))
    say(f"{user} is disabled in {place}.")


@command(users, "enable")
def _enable(user: UserArgument) -> None:
    """Let a user log in again."""
    place = _set_disabled(user, None)
    say(f"{user} may log in to {place}.")


def _set_disabled(user: str, since: datetime | None) -> str:
    """Returns which database: a shell may name another one than the service's settings do."""
    has_users = _check_known(user)
    with opened() as database, database.write() as session:
        if not has_users and user not in credentials.accounts(session):
            raise ConfigError(
                f"{database.name} knows no user {user!r}; set CKV_AUTH, CKV_HOME and "
                "CKV_DATABASE_URL as the service has them."
            )
        credentials.set_disabled(session, None, user, since)
        return database.name


@command(app, "audit")
def _audit() -> None:
    """Print the audit log as CSV, newest first."""
    from ui.tables.csv_text import csv_text

    with opened() as database, database.read() as session:
        entries = audit.list_entries(session, KEPT_ENTRIES)
    rows = ((e.at.isoformat(), e.actor or "", e.action, e.target) for e in entries)
    say(csv_text(("time", "user", "action", "target"), rows).rstrip("\n"))


@command(app, "backup")
def _backup(file: FileArgument) -> None:
    """Copy the SQLite database to a new file, also while it is in use."""
    if file.exists():
        raise ConfigError(f"{file} exists; name a new file.")
    database = database_file(database_url())
    check_whole(database)
    copy_database(database, file)
    say(f"{file}: {file.stat().st_size:,} bytes.")


app.add_typer(users)
app.add_typer(tokens)


def _check_known(name: str) -> bool:
    """Refuse a name that nobody has, where the environment tells who has one: whether it does."""
    users = read_users(os.environ.get("CKV_AUTH", "").strip())
    if users and name not in users:
        raise ConfigError(f"There is no user {name!r} in CKV_AUTH.")
    return bool(users)


def _date(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M}" if at else "never"
