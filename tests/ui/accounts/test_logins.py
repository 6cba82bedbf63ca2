"""Passwords, lock-out, and the users' file."""

import asyncio
import re

import pytest

from ckv_core.errors import ConfigError
from ui.accounts import logins
from ui.accounts.logins import FREE_GUESSES, LONGEST_WAIT_S, Logins
from ui.users import HASHER, User, read_users

pytestmark = pytest.mark.slow

HASH = HASHER.hash("right")
USERS = {"ann": User(HASH)}
OTHER = "10.0.0.2"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def checked(monkeypatch) -> list[str]:
    """Passwords that were looked at; the slow hash is left out."""
    seen: list[str] = []

    def is_password(hashed: str, password: str) -> bool:
        seen.append(password)
        return hashed == HASH and password == "right"

    monkeypatch.setattr(logins, "_is_password", is_password)
    return seen


def ask(door: Logins, user: str, password: str, address: str = "10.0.0.1"):
    return asyncio.run(door.verify(user, password, address))


def test_guessing_is_slowed_down_more_and_more(clock, checked):
    door = Logins(USERS, clock)
    for number in range(FREE_GUESSES):
        assert ask(door, "ann", f"guess {number}").wait_s == 0
    waits = []
    for number in range(14):
        waits.append(ask(door, "ann", f"more {number}").wait_s)
        before = len(checked)
        assert ask(door, "ann", "right").user is None, "the right one must not be told either"
        assert len(checked) == before
        clock.now += waits[-1]
        assert ask(door, "ann", f"again {number}").user is None
    assert waits[0] >= 1
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_WAIT_S
    clock.now += LONGEST_WAIT_S
    assert ask(door, "ann", "right").user == "ann"
    assert ask(door, "ann", "wrong").wait_s == 0, "the right password clears the count"


def test_guesses_count_by_user_and_by_address(checked):
    by_user, by_address = Logins(USERS), Logins(USERS)
    for number in range(FREE_GUESSES):
        ask(by_user, "ann", "wrong", f"10.1.0.{number}")
        ask(by_address, f"user {number}", "wrong", OTHER)
    assert ask(by_user, "ann", "wrong", "10.9.9.9").wait_s > 0
    assert ask(by_address, "ann", "wrong", OTHER).wait_s > 0
    assert ask(by_address, "ann", "right", "10.9.9.9").user == "ann"


def test_guesses_at_once_are_all_counted(checked):
    door = Logins(USERS)

    async def many():
        return await asyncio.gather(
            *(door.verify("ann", f"guess {i}", "10.0.0.1") for i in range(50))
        )

    asyncio.run(many())
    assert len(checked) == FREE_GUESSES


def test_what_guessers_leave_behind_is_bounded(checked, monkeypatch):
    monkeypatch.setattr(logins, "WATCHED", 100)
    door = Logins(USERS)
    for number in range(110):
        ask(door, f"user {number}", "x", f"address {number}")
    assert 0 < len(door._guesses) <= 100


# --- users ---------------------------------------------------------------------------------


def test_users_come_from_the_environment_or_a_file(tmp_path):
    file = tmp_path / "users"
    file.write_text(f"# people\nann:{HASH}\n\nbob:{HASH}\n", "utf-8-sig")
    assert read_users(f"@{file}").keys() == {"ann", "bob"}
    eve = read_users("eve:pass:word")["eve"]
    assert (eve.hashed.startswith("$argon2id$"), eve.is_admin) == (True, True)
    assert logins._is_password(eve.hashed, "pass:word")
    assert dict(read_users(None)) == {}


def test_a_failed_sign_in_is_logged_with_name_and_address_on_one_line(checked, caplog):
    door = Logins(USERS)
    for name in ("ann", "bob\n2026 all is well"):
        asyncio.run(door.verify(name, "wrong", "10.0.0.9"))
    asyncio.run(door.verify("ann", "right", "10.0.0.8"))
    assert [record.getMessage() for record in caplog.records] == [
        "A sign-in failed: name 'ann' from 10.0.0.9.",
        "A sign-in failed: name 'bob\\n2026 all is well' from 10.0.0.9.",
    ]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("", "names nobody"),
        ("# nobody\n", "names nobody"),
        ("bob:{hash}\nann:plain\n", "Line 2 of {file} must read user:argon2-hash"),
        ("bob:{hash}\nann\n", "Line 2 of {file} must read user:argon2-hash"),
        (f"bob:{{hash}}\nann:{HASH[:-1]}", "Line 2 of {file} must read user:argon2-hash"),
        (f"ann:{HASH[:40]} {HASH[41:]}\n", "Line 1 of {file} must read user:argon2-hash"),
        (":{hash}\n", "Line 1 of {file} repeats a name or has none"),
        ("ann:{hash}\n\nann:{hash}\n", "Line 3 of {file} repeats a name"),
        ("ann:{hash}\nbob:{hash}:king\n", "Line 2 of {file}: the only role is admin"),
        ("# J\xf6rg\nann:{hash}\nJ\xf6rg:{hash}\n", "Line 3 of {file} is not UTF-8"),
    ],
)
def test_one_bad_line_is_named_and_lets_nobody_in(tmp_path, lines, sentence):
    file = tmp_path / "users"
    file.write_text(lines.replace("{hash}", HASH), "latin-1")
    with pytest.raises(ConfigError, match=re.escape(sentence.replace("{file}", str(file)))):
        read_users(f"@{file}")
