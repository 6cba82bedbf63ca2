"""What the environment asks of the app, read once at start. No Gradio, no torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from ckv_core.config import DEFAULT_MODEL
from ckv_core.errors import ConfigError

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
DEFAULT_PORT = 7860


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One app's settings.

    Attributes:
        host, port: where to listen.
        model: loaded in the background at start and preselected on the page.
        device: preselected on the page: auto, cpu or cuda.
        database_url: SQLAlchemy URL; None for SQLite in the data folder.
        login: (user, password) that every request must give; None for no login.
        space_host: public host name on Hugging Face Spaces; None elsewhere.
    """

    host: str
    port: int
    model: str
    device: str
    database_url: str | None
    login: tuple[str, str] | None
    space_host: str | None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Settings":
        """Read CKV_* and what Hugging Face Spaces sets; empty values count as unset.

        Raises:
            ConfigError: a value cannot be used.
        """
        given = {key: value.strip() for key, value in environ.items() if value.strip()}
        on_spaces = "SPACE_ID" in given
        default_host = "0.0.0.0" if on_spaces else "127.0.0.1"  # noqa: S104 - a Space is a container
        return cls(
            host=given.get("CKV_HOST") or given.get("GRADIO_SERVER_NAME") or default_host,
            port=_port(given.get("CKV_PORT") or given.get("GRADIO_SERVER_PORT")),
            model=given.get("CKV_MODEL", DEFAULT_MODEL),
            device=_device(given.get("CKV_DEVICE", "auto")),
            database_url=given.get("CKV_DATABASE_URL"),
            login=_login(given.get("CKV_AUTH")),
            space_host=given.get("SPACE_HOST") if on_spaces else None,
        )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the app."""
        return self.host in LOOPBACK_HOSTS


def _port(text: str | None) -> int:
    if text is None:
        return DEFAULT_PORT
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ConfigError(f"CKV_PORT must be a whole number from 1 to 65535, got {text!r}.")
    return int(text)


def _device(text: str) -> str:
    if text not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"CKV_DEVICE must be auto, cpu or cuda, got {text!r}.")
    return text


def _login(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise ConfigError("CKV_AUTH must read user:password.")
    return user, password
