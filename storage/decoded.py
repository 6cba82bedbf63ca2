"""Results of runs that are over, decoded once and kept a while: a page asks for one many times."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import RunResult

# Row, name, creation and end of a run: all that was recorded before its end.
Key = tuple[int, str, datetime, datetime | None]
Decoded = tuple[CompareRequest, RunResult]
MAX_BYTES = 96 * 2**20


class DecodedRuns:
    """The results used last, as many as fit into so many bytes; any thread may call any method.

    What is handed out is shared: nobody changes it.
    """

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, tuple[Decoded, int]] = OrderedDict()
        self._decoding: dict[Key, threading.Lock] = {}

    def once(self, key: Key, decode: Callable[[], Decoded]) -> Decoded:
        """A run's request and result: as kept, or decoded by one of those who ask at a time."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
            turn = self._decoding.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                if key in self._kept:
                    return self._kept[key][0]
            try:
                decoded = decode()
                self._keep(key, decoded)
            finally:
                with self._lock:
                    self._decoding.pop(key, None)
            return decoded

    def _keep(self, key: Key, decoded: Decoded) -> None:
        """Let those go for it that were not used for longest."""
        with self._lock:
            self._kept[key] = decoded, _size(*decoded)
            while self._kept and sum(size for _, size in self._kept.values()) > self._most:
                self._kept.popitem(last=False)

    def forget(self, slug: str) -> None:
        """Let a run go that is deleted; its name and row may come to be another's."""
        with self._lock:
            for key in [key for key in self._kept if key[1] == slug]:
                del self._kept[key]


def _size(request: CompareRequest, result: RunResult) -> int:
    """About how many bytes they take: texts by their characters, a token 100 bytes."""
    tokens = len(result.prompt.token_ids) if result.prompt else 0
    size = 4 * len(request.context) + sum(
        len(row) for own in request.own_indices for layer in own.rows for row in layer or ()
    )
    for variant in result.variants:
        tokens += len(variant.token_ids) + 20 * len(variant.forced_steps)
        size += sum(array.nbytes for array in variant.analysis.values())
        size += len(variant.retained.bits) if variant.retained else 0
        size += len(variant.held.evicted) if variant.held else 0
        size += 3 * variant.perturbation.head_l1.nbytes if variant.perturbation else 0
    return size + 100 * tokens + 5_000 * len(result.variants)
