"""Limits of this process's memory while it works on what is not trusted.

The limit is of the address space, beyond what the process has: an allocation over it fails with a
MemoryError instead of taking the machine's memory. Systems without such a limit ignore it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_lock = threading.Lock()
_holders = 0
_before: tuple[int, int] | None = None


def limit(name: str, most: int) -> None:
    """Set a limit of this process, such as RLIMIT_CPU, for good; a lower one stays."""
    if resource is not None:
        with suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (most, most))


def limit_memory(most: int) -> None:
    """Let this process take at most that many bytes more than it has, for good."""
    limit("RLIMIT_AS", int(psutil.Process().memory_info().vms) + most)


@contextmanager
def memory_limited(most: int) -> Iterator[None]:
    """Let this process take at most that many bytes more than it has, until the end of the block.

    Threads that are inside at once share what the first of them was allowed.
    """
    global _holders, _before  # noqa: PLW0603 - the limit is the process's
    with _lock:
        if not _holders:
            _before = _lower(most)
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if not _holders and _before is not None:
                resource.setrlimit(resource.RLIMIT_AS, _before)


def _lower(most: int) -> tuple[int, int] | None:
    """Lower the soft limit; what it was before, or None where the system takes none."""
    if resource is None:
        return None
    soft, hard = before = resource.getrlimit(resource.RLIMIT_AS)
    wanted = int(psutil.Process().memory_info().vms) + most
    if soft != resource.RLIM_INFINITY:
        wanted = min(wanted, soft)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    except (ValueError, OSError):
        return None
    return before
