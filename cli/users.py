"""`ckv token|user|audit`: what the pages /account and /admin do, for who runs the app."""

import argparse
import os
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime

from ckv_core.cli.options import Commands
from ckv_core.errors import CkvError, ConfigError
from storage import audit, credentials, takeover
from storage.audit import ACTIONS, KEPT_ENTRIES, AuditFilter
from storage.database import database_url, open_database
from ui.users import User, read_users

SCOPES = ("read", "write")


def register(commands: Commands) -> None:
    token = commands.add_parser("token", help="API tokens: make, list, revoke")
    acts = token.add_subparsers(required=True, metavar="ACT")
    act = acts.add_parser("create", help="make a token; it is printed this once")
    act.add_argument("user", metavar="USER")
    act.add_argument("--name", default="command line", help="what to call it")
    act.add_argument("--scope", choices=SCOPES, default="read", help="read by default")
    act.add_argument("--days", type=_days, help="how long it works; for ever by default")
    act.set_defaults(command=_create)
    act = acts.add_parser("list", help="the tokens of all, or of one user")
    act.add_argument("user", nargs="?", metavar="USER")
    act.set_defaults(command=_list)
    act = acts.add_parser("revoke", help="end a token")
    act.add_argument("number", type=int, metavar="NUMBER", help="as `token list` says")
    act.set_defaults(command=_revoke)

    user = commands.add_parser("user", help="shut a user out or in, or give one what nobody owns")
    user.add_argument("act", choices=("disable", "enable", "takeover"))
    user.add_argument("user", metavar="USER")
    user.set_defaults(command=_change_user)

    act = commands.add_parser("audit", help="the audit log as CSV, newest first")
    act.add_argument("--user", default="", metavar="USER")
    act.add_argument("--action", default="", choices=("", *ACTIONS), metavar="ACTION")
    act.add_argument("--target", default="", metavar="NAME", help="slug, user or token number")
    act.add_argument("--since", type=_day, metavar="YYYY-MM-DD", help="UTC")
    act.set_defaults(command=_audit)


def _create(options: argparse.Namespace) -> str:
    _check_known(options.user)
    with closing(open_database(database_url())) as database, database.write() as session:
        number, token = credentials.create_token(
            session,
            options.user,
            options.scope,
            " ".join(options.name.split()),
            now=datetime.now(UTC),
            days=options.days,
        )
        audit.record(session, None, "made token", number)
    return token


def _list(options: argparse.Namespace) -> str:
    now = datetime.now(UTC)
    with closing(open_database(database_url())) as database, database.read() as session:
        tokens = credentials.list_credentials(session, "token", options.user)
    lines = [
        f"{token.id}  {token.owner}  {token.scope}  expires {_date(token.expires_at)}  "
        f"last used {_date(token.last_used_at)}  {token.name}"
        for token in tokens
        if token.is_open(now)
    ]
    return "\n".join(lines) or "There is no token."


def _revoke(options: argparse.Namespace) -> str:
    with closing(open_database(database_url())) as database, database.write() as session:
        closed = credentials.revoke(session, options.number, datetime.now(UTC))
        if closed is None or closed.kind != "token":
            raise CkvError(f"There is no open token {options.number}; see `token list`.")
        audit.record(session, None, "revoked token", closed.id)
    return f"Token {closed.id} of {closed.owner} opens nothing any more."


def _change_user(options: argparse.Namespace) -> str:
    return (_take_over if options.act == "takeover" else _set_disabled)(options)


def _take_over(options: argparse.Namespace) -> str:
    _check_known(options.user)
    with closing(open_database(database_url())) as database, database.write() as session:
        runs = takeover.take_over(session, options.user, None)
    return f"{runs:,} runs are {options.user}'s now."


def _set_disabled(options: argparse.Namespace) -> str:
    _check_known(options.user)
    disabled, now = options.act == "disable", datetime.now(UTC)
    with closing(open_database(database_url())) as database, database.write() as session:
        if credentials.set_disabled(session, options.user, now if disabled else None):
            if disabled:
                credentials.revoke_all(session, options.user, now)
            action: audit.Action = "disabled user" if disabled else "enabled user"
            audit.record(session, None, action, options.user)
    return f"{options.user} {'is disabled' if disabled else 'may log in'}."


def _audit(options: argparse.Namespace) -> str:
    from ui.accounts.administration import audit_csv_text

    wanted = AuditFilter(
        actor=options.user, action=options.action, target=options.target, since=options.since
    )
    with closing(open_database(database_url())) as database, database.read() as session:
        entries = audit.list_entries(session, wanted, KEPT_ENTRIES)
    return audit_csv_text(entries).rstrip("\n")


def _check_known(name: str) -> None:
    """Refuse a name that nobody has, where the environment tells who has one."""
    users: Mapping[str, User] = read_users(
        os.environ.get("CKV_AUTH", "").strip(), os.environ.get("CKV_AUTH_FILE", "").strip()
    )
    if users and name not in users:
        raise ConfigError(f"There is no user {name!r} in CKV_AUTH or CKV_AUTH_FILE.")


def _date(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M}" if at else "never"


def _days(text: str) -> int:
    days = int(text)
    if not 1 <= days <= 3650:
        raise argparse.ArgumentTypeError("1 to 3650 days")
    return days


def _day(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
