"""What can name a run in an address."""

import re

_SLUG = re.compile(r"[a-z0-9]{6,32}", re.ASCII)


def is_slug(text: object) -> bool:
    """Whether a client's text can name a run at all."""
    return isinstance(text, str) and _SLUG.fullmatch(text) is not None
