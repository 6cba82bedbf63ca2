"""What can name a run, or one of its variants, in an address."""

import re

UNKNOWN_RUN = "There is no run of this name; see the list of runs for those that are saved."
_SLUG = re.compile(r"[a-z0-9]{6,32}", re.ASCII)


def is_slug(text: object) -> bool:
    """Whether a client's text can name a run at all."""
    return isinstance(text, str) and _SLUG.fullmatch(text) is not None


def read_index(text: str) -> int:
    """A variant's index out of an address; -1, which no variant has, for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else -1
