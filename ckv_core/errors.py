"""Errors whose message is the sentence that the person at the screen reads."""

from collections.abc import Iterator
from contextlib import contextmanager

OUT_OF_MEMORY = (
    "Memory ran out. Shorten the context, choose fewer variants or new tokens, or a smaller model."
)


class CkvError(Exception):
    """Base of all expected failures; the message says what to do.

    Attributes:
        field: name of the field of a request or form that is wrong; empty where it is none.
    """

    exit_code = 1
    for_good = False  # whether the same request fails each time
    field = ""


class ConfigError(CkvError):
    """An argument is unknown, malformed or out of range."""

    exit_code = 2
    for_good = True


class PromptError(CkvError):
    """The context or question cannot be used as given."""

    exit_code = 2
    for_good = True


class NoRoomError(PromptError):
    """A run needs more memory than there is now."""

    for_good = False


class ModelError(CkvError):
    """The model is unknown, incomplete or cannot be served by this engine."""

    exit_code = 2
    for_good = True


class ModelTooLargeError(ModelError):
    """The weights need more memory than the GPUs have now."""


class EngineError(CkvError):
    """A result cannot be right; nothing of it may be shown."""

    for_good = True


class RunCancelledError(CkvError):
    """The run was stopped on request."""

    def __init__(self, message: str = "The run was cancelled.") -> None:
        super().__init__(message)


class StorageError(CkvError):
    """The database cannot be opened, read or written."""


@contextmanager
def about(field: str) -> Iterator[None]:
    """Name the field that is wrong where a CkvError within names none."""
    try:
        yield
    except CkvError as error:
        error.field = error.field or field
        raise


def first_line(error: BaseException) -> str:
    """The first line of a foreign error's message, else its type; at most 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def in_short(error: BaseException) -> str:
    """Type and message of a foreign error as at most 200 characters of one line."""
    try:
        message = " ".join(str(error)[:1000].split())
    except BaseException:  # a message is a program, too
        message = ""
    return f"{type(error).__name__}: {message}".removesuffix(": ")[:200]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch, oneDNN or a CUDA library found no memory.

    By name: torch's class cannot be imported everywhere, and its CPU allocator has none of its own.
    """
    message = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in message
        or "could not create a memory object" in message  # oneDNN
        or ("CUDA" in message and "out of memory" in message)  # the runtime, or the driver below it
        or "_STATUS_ALLOC_FAILED" in message  # cuBLAS and cuDNN, which allocate by themselves
    )


def is_device_lost(error: BaseException) -> bool:
    """Whether CUDA failed in a way that leaves nothing to compute with in this process."""
    if is_out_of_memory(error):
        return False
    message = str(error)
    return type(error).__name__ == "AcceleratorError" or any(
        word in message for word in ("CUDA error", "CUDA driver error", "_STATUS_EXECUTION_FAILED")
    )
