"""A PostgreSQL server of the tests' own: in a temporary folder, on a free port of loopback."""

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import URL

from tests.processes import free_port

PATIENCE_S = 60
# The server ends with whoever holds the other end of its input, however that ends.
GUARDED = """
folder=$1; shift
"$@" </dev/null & server=$!
cat >/dev/null
kill -QUIT $server  # nothing of it is needed any more
wait $server
rm -rf "$folder"
"""
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "autovacuum": "off",
}


class UnavailableError(Exception):
    """No server can be started here; the sentence says why."""


@dataclass(frozen=True)
class PostgresqlServer:
    """Where it listens, who may come in, and the folder of its programs."""

    programs: Path
    port: int
    password: str

    def url(self, database: str) -> str:
        """For CKV_DATABASE_URL."""
        url = URL.create("postgresql", "ckv", self.password, "127.0.0.1", self.port, database)
        return url.render_as_string(hide_password=False)

    def create(self, name: str, template: str = "template0") -> str:
        """Make a database; returns its URL."""
        self._run(sql.SQL("CREATE DATABASE {} TEMPLATE {}"), name, template)
        return self.url(name)

    def _run(self, statement: sql.SQL, *names: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.format(*map(sql.Identifier, names)))


@contextmanager
def running_server() -> Iterator[PostgresqlServer]:
    """Start a server, and stop it afterwards.

    Raises:
        UnavailableError: PostgreSQL is not installed, or there is nobody but root to run it.
    """
    programs, identity = _programs(), _identity()
    folder = Path(tempfile.mkdtemp(prefix="ckv-postgresql-"))
    try:
        password = _make_cluster(programs, folder, identity)
        server = PostgresqlServer(programs, free_port(), password)
        with _started(folder, server, identity) as log:
            _wait_until_ready(log)
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    """The folder of the newest PostgreSQL; Debian keeps it off PATH."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(versions, key=lambda path: int(path.parts[-3]), default=None)
    if newest is None:
        raise UnavailableError(
            "PostgreSQL is not installed; scripts/find_postgresql.sh installs it"
        )
    return newest.parent


def _identity() -> dict[str, object]:
    """What makes a process somebody else's where we are root, whom PostgreSQL refuses."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise UnavailableError(
        "PostgreSQL does not run as root, and there is no user postgres or nobody"
    )


def _make_cluster(programs: Path, folder: Path, identity: dict[str, object]) -> str:
    """Fill the folder; returns the password of the user ckv."""
    password = secrets.token_hex(16)
    secret = folder / "password"
    secret.write_text(password)
    for path in (folder, secret):
        if identity:
            os.chown(path, identity["user"], identity["group"])
    options = ["--username=ckv", "--auth=scram-sha-256", f"--pwfile={secret}", "--encoding=UTF8"]
    options += ["--locale=C", "--no-sync", "--no-instructions", f"--pgdata={folder}/data"]
    subprocess.run(
        [programs / "initdb", *options],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
        **identity,
    )
    return password


@contextmanager
def _started(folder: Path, server: PostgresqlServer, identity: dict[str, object]) -> Iterator[Path]:
    """The server's process; gives the file of its messages."""
    settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
    command = [server.programs / "postgres", f"-D{folder}/data", f"-p{server.port}", *settings]
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", GUARDED, "sh", folder, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=folder,
            start_new_session=True,  # Ctrl-C is for pytest, which then stops the server
            **identity,
        )
    try:
        yield log
    finally:
        process.stdin.close()
        process.wait(PATIENCE_S)


def _wait_until_ready(log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while "ready to accept connections" not in log.read_text():
        assert time.monotonic() < until, f"the server did not start: {log.read_text()}"
        time.sleep(0.05)
