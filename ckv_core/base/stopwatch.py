"""Wall-clock time per stage, with the device synchronised."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

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
