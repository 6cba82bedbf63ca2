"""Time per stage by wall clock, the device synchronised, and between marks by its own clock."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from ckv_core.base.devices import is_cuda_like


class Stopwatch:
    """Adds up milliseconds per name.

    Attributes:
        timings_ms: what was measured so far.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.timings_ms: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str, *, waits: bool = True) -> Iterator[None]:
        """Time the body and add it to `name`; also when the body raises.

        `waits` is False where the body itself waits for what the device was given before.
        """
        now = self.now if waits else time.perf_counter
        start = now()
        try:
            yield
        finally:
            elapsed = (now() - start) * 1000
            self.timings_ms[name] = self.timings_ms.get(name, 0.0) + elapsed

    def now(self) -> float:
        """Seconds, after the device has finished what it was given."""
        if is_cuda_like(self._device):
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Marks:
    """Points in time that a device passes: events on CUDA, which nobody waits for till the end."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Note the time at which what was given to the device so far is done."""
        if is_cuda_like(self._device):
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def spans_ms(self) -> list[float]:
        """Milliseconds from each mark to the next."""
        if not is_cuda_like(self._device):
            return [(end - start) * 1000 for start, end in pairwise(self._marks)]
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) for start, end in pairwise(self._marks)]
