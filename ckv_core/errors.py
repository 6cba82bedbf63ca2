"""Errors whose message is the sentence that the person at the screen reads."""

OUT_OF_MEMORY = (
    "Memory ran out. Shorten the context, choose fewer variants or new tokens, or a smaller model."
)


class CkvError(Exception):
    """Base of all expected failures; the message says what to do."""

    exit_code = 1


class ConfigError(CkvError):
    """An argument is unknown, malformed or out of range."""

    exit_code = 2


class PromptError(CkvError):
    """The context or question cannot be used as given."""

    exit_code = 2


class ModelError(CkvError):
    """The model is unknown, incomplete or cannot be served by this engine."""

    exit_code = 2


class RunCancelledError(CkvError):
    """The run was stopped on request."""

    def __init__(self, message: str = "The run was cancelled.") -> None:
        super().__init__(message)


class StorageError(CkvError):
    """The database cannot be opened, read or written."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch or oneDNN found no memory.

    By name: torch's class cannot be imported everywhere, and its CPU allocator has none of its own.
    """
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
        or "could not create a memory object" in str(error)  # oneDNN
    )
