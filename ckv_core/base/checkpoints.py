"""Where long work in a thread looks whether it shall end: its client left, or its time is over."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_check: ContextVar[Callable[[], None] | None] = ContextVar("checkpoint", default=None)


def checkpoint() -> None:
    """Raise what ends the work at hand; does nothing where nobody can end it."""
    if (check := _check.get()) is not None:
        check()


@contextmanager
def checked_by(check: Callable[[], None]) -> Iterator[None]:
    """Within it, and in threads that it starts with its context, `check` raises at checkpoints."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)
