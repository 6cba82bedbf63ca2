"""Users and their passwords: argon2 hashes, verified logins remembered, guessing slowed down.

`python -m ui.logins NAME` asks for a password and prints the line for a CKV_AUTH_FILE.
"""

import asyncio
import base64
import binascii
import getpass
import hmac
import math
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from ckv_core.errors import ConfigError

REMEMBERED_S = 600.0
REMEMBERED = 1024  # verified logins at a time
FREE_GUESSES = 5
LONGEST_WAIT_S = 900.0
WATCHED = 4096  # users and addresses whose wrong guesses are counted
VERIFYING = 2  # argon2 runs at a time; each takes 64 MiB
MAX_HEADER_CHARS = 1024

_HASHER = PasswordHasher()


@dataclass(frozen=True, slots=True)
class LoginResult:
    """What became of one Authorization header.

    Attributes:
        user: who it is; None if the login is missing or wrong.
        wait_s: seconds until the next guess is looked at; 0 for none.
    """

    user: str | None = None
    wait_s: int = 0


@dataclass(slots=True)
class _Guesses:
    """Wrong guesses of one user name or address."""

    count: int = 0
    blocked_until: float = 0.0


class Logins:
    """Checks HTTP Basic credentials; for one event loop."""

    def __init__(
        self, users: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take argon2 hashes by user name."""
        self._users = dict(users)
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, tuple[str, float]] = {}
        self._guesses: dict[bytes, _Guesses] = {}
        self._running: dict[bytes, asyncio.Task[LoginResult]] = {}
        self._places = asyncio.Semaphore(VERIFYING)
        # Checked for unknown names, so that they take as long as known ones.
        self._nobody = _HASHER.hash(secrets.token_hex())

    async def check(self, header: str, address: str) -> LoginResult:
        """Who sends this Authorization header.

        Args:
            header: its value; empty for none.
            address: of the client.
        """
        given = _read_basic(header)
        if given is None:
            return LoginResult()
        digest = self._digest("header", header)
        user, until = self._remembered.get(digest, ("", 0.0))
        if self._clock() < until:
            return LoginResult(user)
        # A page fetches many files at once: one check serves all that carry the same header.
        # The address is part of it, so that no one waits for, or profits from, another's check.
        key = self._digest("running", address, header)
        task = self._running.get(key)
        if task is None:
            task = asyncio.create_task(self._verify(*given, digest, address))
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(task)

    async def _verify(self, user: str, password: str, digest: bytes, address: str) -> LoginResult:
        guessing = [self._digest("user", user), self._digest("address", address)]
        if (wait_s := self._blocked_for(guessing)) > 0:
            return LoginResult(wait_s=math.ceil(wait_s))
        # Counted before it is known to be wrong: guesses sent at once must not all go through.
        for key in guessing:
            self._count(key)
        async with self._places:
            known = self._users.get(user)
            is_right = await asyncio.to_thread(_is_password, known or self._nobody, password)
        if known is None or not is_right:
            return LoginResult()
        for key in guessing:
            self._guesses.pop(key, None)
        self._remembered[digest] = (user, self._clock() + REMEMBERED_S)
        _shrink(self._remembered, REMEMBERED)
        return LoginResult(user)

    def _blocked_for(self, keys: list[bytes]) -> float:
        found = [self._guesses[key].blocked_until for key in keys if key in self._guesses]
        return max(found, default=0.0) - self._clock()

    def _count(self, key: bytes) -> None:
        guesses = self._guesses.pop(key, None) or _Guesses()
        guesses.count += 1
        over = guesses.count - FREE_GUESSES
        if over >= 0:
            wait_s = min(2.0 ** min(over, 30), LONGEST_WAIT_S)
            guesses.blocked_until = self._clock() + wait_s
        self._guesses[key] = guesses  # the latest last, so that the oldest goes first
        _shrink(self._guesses, WATCHED)

    def _digest(self, *parts: str) -> bytes:
        text = "\0".join(parts).encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, text, "sha256")


def read_users(text: str | None, file: str | None) -> dict[str, str]:
    """Users from the value of CKV_AUTH and the path in CKV_AUTH_FILE; argon2 hashes by name.

    Raises:
        ConfigError: either cannot be used.
    """
    if text and text.startswith("@"):
        text, file = "", file or text[1:]
    users: dict[str, str] = {}
    if text:
        user, colon, password = text.partition(":")
        if not (user and colon and password):
            raise ConfigError("CKV_AUTH must read user:password, or @FILE.")
        users[user] = _HASHER.hash(password)
    if file:
        try:
            lines = Path(file).expanduser().read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"The users' file {file} cannot be read ({error}).") from None
        found = _read_lines(lines, file)
        if not found:
            raise ConfigError(f"The users' file {file} names nobody; see python -m ui.logins.")
        users |= found
    return users


def _read_lines(lines: list[str], file: str) -> dict[str, str]:
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, _, hashed = line.strip().partition(":")
        try:
            _HASHER.check_needs_rehash(hashed)
        except InvalidHashError:
            raise ConfigError(
                f"Line {number} of {file} must read user:argon2-hash; make it with "
                "python -m ui.logins NAME."
            ) from None
        if not user or user in users:
            raise ConfigError(f"Line {number} of {file} repeats a name or has none.")
        users[user] = hashed
    return users


def _read_basic(header: str) -> tuple[str, str] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic" or len(header) > MAX_HEADER_CHARS:
        return None
    try:
        text = base64.b64decode(encoded, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    user, colon, password = text.partition(":")
    return (user, password) if colon else None


def _is_password(hashed: str, password: str) -> bool:
    try:
        return _HASHER.verify(hashed, password)
    except (VerificationError, InvalidHashError):
        return False


def _shrink(entries: dict[bytes, Any], size: int) -> None:
    while len(entries) > size:
        del entries[next(iter(entries))]


def main(arguments: list[str]) -> int:
    """Print the line of one user for a CKV_AUTH_FILE; returns the exit status."""
    if len(arguments) != 1 or ":" in arguments[0] or not arguments[0].strip():
        sys.stderr.write("usage: python -m ui.logins NAME (without a colon)\n")
        return 2
    password = getpass.getpass(f"Password of {arguments[0]}: ")
    if not password:
        sys.stderr.write("The password is empty; nothing was made.\n")
        return 2
    sys.stdout.write(f"{arguments[0]}:{_HASHER.hash(password)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
