"""The settings of the app from its environment, read once at start. No Gradio, no torch."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ckv_core.errors import ConfigError
from ckv_core.records.run_request import DEFAULT_MODEL, DEVICES
from ui.limits import Limits
from ui.users import NOBODY, Users, read_users

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
HOST_NAME = re.compile(r"[a-z0-9.-]+|[0-9a-f:.]*:[0-9a-f:.]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One app's settings; docs/reference/settings.md explains each by its variable."""

    host: str
    port: int
    model: str  # loaded in the background at start and preselected on the page
    device: str  # preselected on the page: auto, cpu or cuda
    database_url: str | None  # of SQLAlchemy; None for SQLite in the data folder
    users: Users = field(repr=False)  # who may log in; empty for no logins
    allow_anonymous: bool  # others may reach the app though it has no logins
    # Names under which the app may be addressed; empty for any. Where it listens on loopback, or
    # names are given, this machine's own are among them.
    allowed_hosts: frozenset[str]
    # Whose forwarded headers count: addresses and networks with commas between, or *; or empty.
    proxies: str
    space_host: str | None  # public host name on Hugging Face Spaces
    limits: Limits = field(default_factory=Limits)
    cluster: str | None  # where studies are computed: local, auto or Ray's address; None for here
    example: bool  # run one example after the start, which the Compare page shows
    mcp: bool  # offer the endpoints of ui/api/endpoints.py to MCP clients too

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Settings":
        """Read CKV_* and what Hugging Face Spaces sets; empty values count as unset."""
        given = {key: value.strip() for key, value in environ.items() if value.strip()}
        on_spaces = "SPACE_ID" in given
        default_host = "0.0.0.0" if on_spaces else "127.0.0.1"  # noqa: S104 - a Space is a container
        host = given.get("CKV_HOST", default_host)
        return cls(
            host=host,
            port=_port(given.get("CKV_PORT", "7860")),
            model=given.get("CKV_MODEL", DEFAULT_MODEL),
            device=_one_of(given, "CKV_DEVICE", DEVICES),
            database_url=given.get("CKV_DATABASE_URL"),
            users=read_users(given.get("CKV_AUTH")),
            # A Space is guarded by its platform, or public on purpose.
            allow_anonymous=on_spaces or given.get("CKV_AUTH") == NOBODY,
            allowed_hosts=_hosts(given.get("CKV_ALLOWED_HOSTS", ""), host),
            # Only the platform's proxy reaches a Space.
            proxies=_proxies(given.get("FORWARDED_ALLOW_IPS", "*" if on_spaces else "")),
            space_host=given.get("SPACE_HOST") if on_spaces else None,
            cluster=given.get("CKV_CLUSTER"),
            example=_one_of(given, "CKV_EXAMPLE", ("1", "0")) == "1",
            mcp=_flag(given, "CKV_MCP"),
        )

    def check_exposure(self) -> None:
        """Refuse to serve other machines without logins, unless the settings say so."""
        if not (_is_loopback(self.host) or self.users or self.allow_anonymous):
            raise ConfigError(
                f"Other machines could reach the app on {self.host} without a login; set CKV_AUTH, "
                f"or CKV_AUTH={NOBODY} if that is wanted."
            )


def _port(text: str) -> int:
    # The length stops int() from reading a huge text.
    if not (re.fullmatch("[0-9]{1,5}", text) and 1 <= int(text) <= 65535):
        raise ConfigError("CKV_PORT must be a whole number from 1 to 65,535.")
    return int(text)


def _one_of(given: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """The first where it is not set."""
    text = given.get(name, allowed[0])
    if text not in allowed:
        raise ConfigError(f"{name} must be {' or '.join(allowed)}, got {text!r}.")
    return text


def _flag(given: Mapping[str, str], name: str) -> bool:
    return _one_of(given, name, ("0", "1")) == "1"


def _is_loopback(host: str) -> bool:
    return host.strip("[]") in LOOPBACK_HOSTS


def _hosts(text: str, host: str) -> frozenset[str]:
    names = frozenset(name.strip().lower() for name in text.split(",") if name.strip())
    if wrong := sorted(name for name in names if not HOST_NAME.fullmatch(name)):
        raise ConfigError(
            f"CKV_ALLOWED_HOSTS lists names without scheme or port, separated by commas; "
            f"{wrong[0]!r} is none."
        )
    return names | LOOPBACK_HOSTS if names or _is_loopback(host) else names


def _proxies(text: str) -> str:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        try:
            if names != ["*"]:
                ipaddress.ip_network(name)
        except ValueError:
            raise ConfigError(
                "FORWARDED_ALLOW_IPS lists addresses or networks, separated by commas, or is *; "
                f"{name!r} is none."
            ) from None
    return ",".join(names)
