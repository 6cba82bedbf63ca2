"""Tables of figures, and the cells that several of them share."""

import statistics
from collections.abc import Mapping, Sequence

from ckv_core.records.events import RunResult


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median and range."""
    shown = [
        f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    ]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def ratios(above: Sequence[float], below: Sequence[float]) -> str:
    """Median and range of one side's time over the other's in the same round."""
    return spread([a / b for a, b in zip(above, below, strict=True)], digits=2)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print one Markdown table."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + " --- |" * len(header))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


def selection_share(times: Mapping[str, float]) -> str:
    """What scoring and selecting for all variants costs of the time to read the prompt."""
    return f"{(times['score'] + times['select']) / times['prefill']:.0%}"


def memory_cells(result: RunResult) -> tuple[str, ...]:
    """Estimate, measured peak and full cache, in MiB."""
    names = ("total", "measured_peak", "cache")
    return tuple(
        f"{result.memory[name] / 2**20:,.0f}" if name in result.memory else "?" for name in names
    )
