"""The link of a setup that was not run: the form's values that are not its defaults, compressed."""

import base64
import binascii
import json
import zlib
from typing import Any

from ckv_core.base.json_text import JsonBounds
from ckv_core.errors import CkvError, ConfigError
from ui.compare.form_values import CONTROL_NAMES, FormValues

MOST_CHARS = 7_000  # of the setup in an address; proxies refuse lines of 8 KiB
MOST_BYTES = 2**20  # once it is unpacked
TEXTS = ("context", "data")
NAME = "setup"
WRONG = "This setup link is not whole; ask its sender to copy it again."
NO_TEXT = "The text is too long for a link, so it is not in it."
_BOUNDS = JsonBounds(containers=64, values=4096, depth=3)


def setup_of(form: FormValues) -> tuple[str, bool]:
    """The setup as it stands in an address, and whether its long text fitted into it.

    Raises:
        ConfigError: it is too long without the text too.
    """
    defaults = dict(zip(CONTROL_NAMES, FormValues().controls(), strict=True))
    values = dict(zip(CONTROL_NAMES, form.controls(), strict=True))
    own: dict[str, Any] = {name: value for name, value in values.items() if value != defaults[name]}
    is_short = sum(len(own.get(name, "")) for name in TEXTS) <= MOST_BYTES // 2
    if is_short and len(packed := _packed(own)) <= MOST_CHARS:
        return packed, True
    packed = _packed({name: value for name, value in own.items() if name not in TEXTS})
    if len(packed) > MOST_CHARS:
        raise ConfigError("The setup is too long for a link even without its text; shorten it.")
    return packed, False


def form_of(setup: str) -> FormValues:
    """The form of a setup out of an address, which may be anything; ConfigError for no setup."""
    try:
        given = _BOUNDS.read(_unpacked(setup))
        if not isinstance(given, dict) or not given.keys() <= set(CONTROL_NAMES):
            raise ConfigError(WRONG)
        values = dict(zip(CONTROL_NAMES, FormValues().controls(), strict=True))
        for name, value in given.items():
            if type(value) is not type(values[name]):
                raise ConfigError(WRONG)
        return FormValues.from_controls([*(values | given).values()])
    except CkvError:
        raise ConfigError(WRONG) from None


def _packed(values: dict[str, Any]) -> str:
    data = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.urlsafe_b64encode(zlib.compress(data, 9)).decode().rstrip("=")


def _unpacked(setup: str) -> bytes:
    if not setup.isascii() or len(setup) > MOST_CHARS:
        raise ConfigError(WRONG)
    try:
        data = base64.urlsafe_b64decode(setup + "=" * (-len(setup) % 4))
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(data, MOST_BYTES)
    except (binascii.Error, ValueError, zlib.error):
        raise ConfigError(WRONG) from None
    if not unpacker.eof:  # cut, or larger than any that is made
        raise ConfigError(WRONG)
    return text
