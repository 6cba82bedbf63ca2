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


class NoRoomError(PromptError):
    """A run needs more memory than there is now."""


class ModelError(CkvError):
    """The model is unknown, incomplete or cannot be served by this engine."""

    exit_code = 2


class EngineError(CkvError):
    """A result cannot be right; nothing of it may be shown."""


class RunCancelledError(CkvError):
    """The run was stopped on request."""

    def __init__(self, message: str = "The run was cancelled.") -> None:
        super().__init__(message)


class StorageError(CkvError):
    """The database cannot be opened, read or written."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch, oneDNN or a CUDA library found no memory.

    By name: torch's class cannot be imported everywhere, and its CPU allocator has none of its own.
    """
    said = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in said
        or "could not create a memory object" in said  # oneDNN
        or ("CUDA" in said and "out of memory" in said)  # the runtime, or the driver below it
        or "_STATUS_ALLOC_FAILED" in said  # cuBLAS and cuDNN, which allocate by themselves
    )


def is_device_lost(error: BaseException) -> bool:
    """Whether CUDA failed in a way that leaves nothing to compute with in this process."""
    if is_out_of_memory(error):
        return False
    said = str(error)
    return type(error).__name__ == "AcceleratorError" or any(
        word in said for word in ("CUDA error", "CUDA driver error", "_STATUS_EXECUTION_FAILED")
    )
