"""Settings from the environment: what is read, what is refused, what may be served."""

import pytest

from ckv_core.errors import ConfigError
from ui.settings import Settings


def read(**environ: str) -> Settings:
    return Settings.from_environ(environ)


def test_the_app_listens_on_this_machine_only_unless_told_otherwise():
    assert (read().host, read().port, read().proxies, read().mcp) == ("127.0.0.1", 7860, "", False)
    assert read(CKV_HOST="::1").host == "::1"
    assert read(SPACE_ID="a/b").host == "0.0.0.0"
    assert read(CKV_MCP="1").mcp


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CKV_PORT", "x"),
        ("CKV_PORT", "0"),
        ("CKV_PORT", "70000"),
        ("CKV_PORT", "²"),
        ("CKV_PORT", "9" * 5000),
        ("CKV_DEVICE", "tpu"),
        ("CKV_AUTH", "ann"),
        ("CKV_ALLOWED_HOSTS", "https://lab.example"),
        ("CKV_ALLOWED_HOSTS", "lab.example, *"),
        ("FORWARDED_ALLOW_IPS", "localhost"),
        ("FORWARDED_ALLOW_IPS", "10.0.0.1/33"),
        ("FORWARDED_ALLOW_IPS", "*, 10.0.0.1"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(name, text):
    with pytest.raises(ConfigError, match=rf"^{name} (must|lists)"):
        read(**{name: text})


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "lab.example"])
def test_others_are_not_served_without_logins_unless_told_to(host):
    with pytest.raises(ConfigError, match="CKV_AUTH=none"):
        read(CKV_HOST=host).check_exposure()
    for allowed in ({"CKV_AUTH": "a:b"}, {"CKV_AUTH": "none"}, {"SPACE_ID": "a/b"}):
        read(CKV_HOST=host, **allowed).check_exposure()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_this_machine_is_served_without_logins(host):
    read(CKV_HOST=host).check_exposure()


def test_a_password_does_not_show():
    told = repr(read(CKV_AUTH="ann:secret"))
    assert "secret" not in told
    assert "argon2" not in told
