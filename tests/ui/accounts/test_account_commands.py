"""`python app.py token|user|audit` on a database of its own."""

import re

import pytest

from ui.commands import main

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("CKV_HOME", str(tmp_path))
    monkeypatch.setenv("CKV_AUTH", "ann:secret")
    for name in ("CKV_DATABASE_URL", "CKV_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)


def said(capsys, *arguments: str, status: int = 0) -> str:
    assert main(list(arguments)) == status
    out, err = capsys.readouterr()
    return err if status else out


def test_a_token_is_made_listed_and_revoked_once(capsys):
    token = said(capsys, "token", "create", "ann", "--name", "ni\x1bght", "--days", "7").strip()
    assert re.fullmatch(r"ckv_[\w-]{43}", token)
    listed = said(capsys, "token", "list", "ann")
    assert "ann  read  expires 2" in listed
    assert token not in listed
    assert "\x1b" not in listed
    number = listed.split()[0]
    assert "opens nothing any more" in said(capsys, "token", "revoke", number)
    assert "no open token" in said(capsys, "token", "revoke", number, status=1)
    assert said(capsys, "token", "list").strip() == "There is no token."
    acts = said(capsys, "audit")
    assert acts.index("revoked token") < acts.index("made token")


def test_a_user_is_disabled_and_enabled_and_nobody_else_is_known(capsys):
    assert "ann is disabled" in said(capsys, "user", "disable", "ann")
    assert "ann may log in" in said(capsys, "user", "enable", "ann")
    assert "no user 'bob'" in said(capsys, "user", "disable", "bob", status=2)
    assert "no user 'bob'" in said(capsys, "token", "create", "bob", status=2)
    assert "enabled user" not in said(capsys, "audit", "--action", "disabled user")
