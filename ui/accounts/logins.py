"""Checks passwords: argon2 hashes, guessing slowed down."""

import asyncio
import hmac
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from argon2.exceptions import InvalidHashError, VerificationError

from ui.users import HASHER, User

FREE_GUESSES = 5
LONGEST_WAIT_S = 900.0
WATCHED = 4096  # users and addresses whose wrong guesses are counted
VERIFYING = 2  # argon2 runs at a time; each takes 64 MiB
NAME_CHARS = 64  # of a name in the log

LOGGER = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoginResult:
    """What became of one name and password.

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
    """Checks names and passwords; for one event loop."""

    def __init__(
        self,
        users: Mapping[str, User],
        clock: Callable[[], float] = time.monotonic,
        on_failure: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """Start without guesses; `on_failure` gets the user of each wrong password, or None."""
        self._users = users
        self._clock = clock
        self._on_failure = on_failure
        self._key = secrets.token_bytes(32)
        self._guesses: dict[bytes, _Guesses] = {}
        self._places = asyncio.Semaphore(VERIFYING)
        # No others' work can use these up.
        self._threads = ThreadPoolExecutor(VERIFYING + 2, "logins")
        # Checked for unknown names, so that they take as long as known ones.
        self._nobody = HASHER.hash(secrets.token_hex())

    async def verify(self, user: str, password: str, address: str) -> LoginResult:
        """Whether this is the user's password; wrong ones count against name and address."""
        guessing = [self._digest("user", user), self._digest("address", address)]
        ends = [self._guesses[key].blocked_until for key in guessing if key in self._guesses]
        if (wait_s := max(ends, default=0.0) - self._clock()) > 0:
            return LoginResult(wait_s=math.ceil(wait_s))
        # Counted before it is known to be wrong: guesses sent at once must not all go through.
        for key in guessing:
            self._count(key)
        async with self._places:
            known = self._users.get(user)
            hashed = known.hashed if known else self._nobody
            is_right = await self._in_thread(_is_password, hashed, password)
        if known is None or not is_right:
            # What fail2ban and its like read. A name may hold anything, a password typed there too.
            LOGGER.warning("A sign-in failed: name %a from %s.", user[:NAME_CHARS], address)
            await self._in_thread(self._on_failure, user if known else None)
            return LoginResult()
        for key in guessing:
            self._guesses.pop(key, None)
        return LoginResult(user)

    async def _in_thread(self, act: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act, *given)

    def _count(self, key: bytes) -> None:
        guesses = self._guesses.pop(key, None) or _Guesses()
        guesses.count += 1
        over = guesses.count - FREE_GUESSES
        if over >= 0:
            wait_s = min(2.0 ** min(over, 30), LONGEST_WAIT_S)
            guesses.blocked_until = self._clock() + wait_s
        self._guesses[key] = guesses  # the latest last, so that the oldest goes first
        while len(self._guesses) > WATCHED:
            del self._guesses[next(iter(self._guesses))]

    def _digest(self, *parts: str) -> bytes:
        text = "\0".join(parts).encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, text, "sha256")


def _is_password(hashed: str, password: str) -> bool:
    try:
        return HASHER.verify(hashed, password)
    except (VerificationError, InvalidHashError):
        return False
