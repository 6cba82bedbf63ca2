"""What the commands print: no text of a model, file or user reaches the terminal as a command."""

import io
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

# C0 but line feed and tab, DEL and C1; line separators, and what turns the direction of text.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    r"""The text with each control character as its code, e.g. `\x1b`."""
    return _COMMANDS.sub(_code, text)


def say(text: str = "", *, to_error: bool = False) -> None:
    """Print lines; what the terminal's encoding lacks appears as its code."""
    stream = sys.stderr if to_error else sys.stdout
    _write(_behind(stream), f"{plain(text)}\n")


def show_line(text: str) -> None:
    """Put one line in the place of the last one, for progress; only on a terminal."""
    stream = _behind(sys.stderr)
    if stream.isatty():
        _write(stream, "\r\033[K" + plain(text).replace("\n", " ")[:200])


def terminal_width() -> int:
    """Columns of the terminal that `say` prints to; a million for a file or pipe."""
    return shutil.get_terminal_size().columns if _behind(sys.stdout).isatty() else 1_000_000


@contextmanager
def neutralised() -> Iterator[None]:
    """Let what other packages print in the block reach standard error as plain text.

    What `say` and `show_line` print goes where it would go without.
    """
    error = _behind(sys.stderr)
    out, err = _Plain(error, _behind(sys.stdout)), _Plain(error, error)
    with redirect_stdout(out), redirect_stderr(err):
        yield


class _Plain(io.StringIO):
    """A stream in the place of another, which writes plain text."""

    def __init__(self, stream: TextIO, behind: TextIO) -> None:
        super().__init__()
        self._stream, self.behind = stream, behind

    def write(self, text: str, /) -> int:
        """Write the text with each control character as its code."""
        _write(self._stream, plain(text))
        return len(text)

    def fileno(self) -> int:
        """The number of the stream that is written to, as libraries ask for it."""
        return self._stream.fileno()


def _behind(stream: TextIO) -> TextIO:
    return stream.behind if isinstance(stream, _Plain) else stream


def _write(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _code(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
