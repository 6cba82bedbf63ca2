"""Who may log in: the user in CKV_AUTH, or those of its file, read again when it changes."""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from argon2 import PasswordHasher

from ckv_core.errors import ConfigError

LOGGER = logging.getLogger(__name__)
HASHER = PasswordHasher()
# At least the 32 bytes that HASHER writes: a hash that was cut would lock its user out.
_HASH = re.compile(
    r"\$argon2(id|i|d)\$v=[0-9]+\$m=[0-9]+,t=[0-9]+,p=[0-9]+\$[\w+/]{11,}\$[\w+/]{43,}", re.ASCII
)
ADMIN = "admin"
LOOKED_AT_EVERY_S = 1.0
HOW = "ckv users line NAME"


@dataclass(frozen=True, slots=True)
class User:
    """One line of the users' file.

    Attributes:
        hashed: argon2 hash of the password.
        is_admin: sees the queue, storage, users and the audit log of all.
    """

    hashed: str = field(repr=False)
    is_admin: bool = False

    @property
    def mark(self) -> str:
        """Tells this password from the next; of CKV_AUTH, whose salt is new, each start's too."""
        return hashlib.sha256(self.hashed.encode()).hexdigest()[:16]


class Users(Mapping[str, User]):
    """Users by name, as they are now; any thread may ask."""

    def __init__(
        self,
        users: Mapping[str, User] | None = None,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Have these users, or read those of a file; ConfigError if it cannot be used."""
        self._file = file
        self._clock = clock
        self._looked_at = clock()
        self._seen = _identity(file)
        self._users = read_file(file) if file else dict(users or {})

    def __getitem__(self, name: str) -> User:
        return self._current()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current())

    def __len__(self) -> int:
        """How many there are; 0 means an app without logins."""
        return len(self._current())

    def _current(self) -> dict[str, User]:
        now = self._clock()
        if self._file is None or now - self._looked_at < LOOKED_AT_EVERY_S:
            return self._users
        self._looked_at = now
        seen = _identity(self._file)
        if seen != self._seen:
            self._seen = seen
            try:
                self._users = read_file(self._file)
            except ConfigError as error:
                LOGGER.warning(
                    "The changed users' file cannot be used; the users stay as before. %s", error
                )
            else:
                LOGGER.info("The users' file was read again.")
        return self._users


def read_users(text: str | None) -> Users:
    """Users from the value of CKV_AUTH: those of a file, or one, who is an administrator."""
    if not text:
        return Users()
    if text.startswith("@"):
        return Users(file=Path(text[1:]).expanduser())
    name, colon, password = text.partition(":")
    if not (name and colon and password):
        raise ConfigError("CKV_AUTH must read user:password, or @FILE.")
    return Users({name: User(HASHER.hash(password), is_admin=True)})


def read_file(file: Path) -> dict[str, User]:
    """Users of a file: one NAME:HASH, or NAME:HASH:admin, a line; or ConfigError."""
    try:
        lines = file.read_text("utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise ConfigError(f"The users' file {file} cannot be read ({error}).") from None
    users: dict[str, User] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.strip().partition(":")
        hashed, colon, role = rest.partition(":")
        if "\N{REPLACEMENT CHARACTER}" in line:
            raise ConfigError(f"Line {number} of {file} is not UTF-8; save the file as UTF-8.")
        if not _HASH.fullmatch(hashed):
            raise ConfigError(
                f"Line {number} of {file} must read user:argon2-hash; make it with {HOW}."
            )
        if colon and role != ADMIN:
            raise ConfigError(f"Line {number} of {file}: the only role is {ADMIN}.")
        if not name or name in users:
            raise ConfigError(f"Line {number} of {file} repeats a name or has none.")
        users[name] = User(hashed, role == ADMIN)
    if not users:
        raise ConfigError(f"The users' file {file} names nobody; see {HOW}.")
    return users


def _identity(file: Path | None) -> tuple[int, ...]:
    """What changes when a file is written or replaced; empty while there is none."""
    try:
        stat = file.stat() if file else None
    except OSError:
        stat = None
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat else ()
