"""Steps of finding and loading a model, and how long each may take."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ckv_core.base.memory_line import human_bytes

STEP_S = 120.0  # what reads no weights: configs, headers, a skeleton without numbers
STALL_S = 300.0  # a download or a read that gets nowhere for so long is stuck
BYTES_PER_S = 5e6  # what the slowest disk that is worth waiting for reads, hashes or converts
TELL_EVERY_S = 0.3


@dataclass(frozen=True, slots=True)
class Step:
    sentence: str  # for the reader
    fraction: float | None = None  # of this step, 0 to 1; None where its size is unknown
    # Until the next step begins; a process that loads for another may be ended then.
    limit_s: float = STEP_S


Report = Callable[[Step], None]


def silent(_: Step) -> None:
    """A report that nobody reads."""


def read_limit_s(nbytes: int) -> float:
    """How long reading so many bytes may take in one go."""
    return STALL_S + nbytes / BYTES_PER_S


class Meter:
    """Reports how far a long step is, a few times a second; the report may raise to stop it."""

    def __init__(self, report: Report, sentence: str, unit: str = "") -> None:
        """Count from 0; `sentence` has no full stop, `unit` is empty for bytes."""
        self._report, self._sentence, self._unit = report, sentence, unit
        self._reported_at = 0.0

    def at(self, done: float, total: float | None) -> None:
        """Say how far it is; the first and the last time at once."""
        now = time.monotonic()
        is_last = total is not None and done >= total
        if now - self._reported_at < TELL_EVERY_S and not is_last:
            return
        self._reported_at = now
        fraction = min(1.0, done / total) if total else None
        amounts = " of ".join(
            f"{each:,.0f} {self._unit}" if self._unit else human_bytes(int(each))
            for each in (done, total)
            if each or each is done
        )
        self._report(Step(f"{self._sentence}: {amounts}.", fraction, STALL_S))
