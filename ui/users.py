"""Who may log in: the user in CKV_AUTH, or those of its file."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from argon2 import PasswordHasher

from ckv_core.errors import ConfigError

HASHER = PasswordHasher()
# At least the 32 bytes that HASHER writes: a hash that was cut would lock its user out.
_HASH = re.compile(
    r"\$argon2(id|i|d)\$v=[0-9]+\$m=[0-9]+,t=[0-9]+,p=[0-9]+\$[\w+/]{11,}\$[\w+/]{43,}", re.ASCII
)
ADMIN = "admin"
NOBODY = "none"  # as CKV_AUTH: without logins, for other machines too
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


Users = Mapping[str, User]  # by name; none is an app without logins


def read_users(text: str | None) -> Users:
    """Users from the value of CKV_AUTH: those of a file, or one, who is an administrator."""
    if not text or text == NOBODY:
        return {}
    if text.startswith("@"):
        return read_file(Path(text[1:]).expanduser())
    name, colon, password = text.partition(":")
    if not (name and colon and password):
        raise ConfigError("CKV_AUTH must read user:password, @FILE, or none.")
    return {name: User(HASHER.hash(password), is_admin=True)}


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
