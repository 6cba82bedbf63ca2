"""One line on what a run was expected to take in memory and what it took. No torch."""

from collections.abc import Mapping

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def human_bytes(count: int) -> str:
    """`1.5 GiB`."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:,.0f} {_UNITS[unit]}" if unit < 2 else f"{size:,.1f} {_UNITS[unit]}"


def memory_line(memory: Mapping[str, int]) -> str:
    """Estimate, measured peak, and the cache apart from it; empty without an estimate.

    `memory` is that of a RunResult, in bytes.
    """
    if "total" not in memory:
        return ""
    measured = "not measured here"
    held = f"; held while decoding {human_bytes(memory['held'])}" if "held" in memory else ""
    if "measured_peak" in memory:
        measured = human_bytes(memory["measured_peak"])
    return (
        f"memory: peak {measured}, estimated about {human_bytes(memory['total'])} of "
        f"{human_bytes(memory['available'])}; of it full cache {human_bytes(memory['cache'])}, "
        f"variants' caches {human_bytes(memory['variants'])}{held}"
    )
