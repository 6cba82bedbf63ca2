"""Further passes over given tokens, read behind a prompt: a function of its prefill."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ckv_core.base.stopwatch import Stopwatch
from ckv_core.engine.causal import sliding_attention
from ckv_core.engine.prefill import Prefill, Reader, chunk_tokens
from ckv_core.errors import RunCancelledError
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.views import FurtherPass, FurtherPasses, begun
from ckv_core.records.events import Progress

Planned = Sequence[tuple[FurtherPasses, Sequence[FurtherPass]]]


class _PassReader(Reader):
    """Attention of a pass over the whole prompt and its own tokens; shows them as they go by."""

    def __init__(
        self, prefill: Prefill, passes: FurtherPasses, should_stop: Callable[[], bool]
    ) -> None:
        super().__init__(prefill.loaded, should_stop)
        self._prefill, self._passes = prefill, passes
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self.statistics: dict[int, Tensor] = {}
        self.at = 0  # tokens of the pass that were read before this chunk

    def begin(self, current: FurtherPass) -> None:
        self._current, self.at = current, 0
        self._own.clear()

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: Scaling
    ) -> Tensor:
        if self._should_stop():
            raise RunCancelledError
        keys, values = key[0], value[0]
        if self.at:
            earlier = self._own[layer]
            keys, values = torch.cat([earlier[0], keys], 1), torch.cat([earlier[1], values], 1)
        self._own[layer] = keys, values
        states = self._prefill.layers[layer]
        window = self.loaded.sliding_windows[layer]
        # Of a sliding layer, what some token of the pass may see.
        first = 0 if window is None else max(0, states.keys.shape[1] - window + 1)
        keys = torch.cat([states.keys[:, first:], keys], 1)
        values = torch.cat([states.values[:, first:], values], 1)
        start = self._prefill.prompt_len + self.at
        if window is not None:
            return sliding_attention(query, keys[None], values[None], window, scaling)
        if layer not in self.statistics:
            self.statistics[layer] = begun(self._passes, query[0], self._prefill.prompt_len)
        out, seen = self._causal(layer, start, query, (keys, values), scaling)
        self._passes.see(self.statistics[layer], seen, self._current)
        return out


def further_passes(
    prefill: Prefill, planned: Planned, should_stop: Callable[[], bool]
) -> Iterator[Progress]:
    """Make those of the planned passes whose statistic the prefill lacks, and add it there.

    Whatever is read here is forgotten again, and a statistic that is not complete is not kept.
    """
    wanted = [each for each in planned if each[0] not in prefill.observed]
    sizes = [len(one.token_ids) for _, passes in wanted for one in passes]
    total, count, done, number = sum(sizes), len(sizes), 0, 0
    device, start = prefill.loaded.device, prefill.prompt_len
    for statistic, passes in wanted:
        reader = _PassReader(prefill, statistic, should_stop)
        stopwatch = Stopwatch(device)
        for one in passes:
            number += 1
            reader.begin(one)
            ids, whole = torch.tensor([one.token_ids], device=device), start + len(one.token_ids)
            for part in torch.split(ids, chunk_tokens(device), dim=1):
                with stopwatch.measure("pass"):
                    reader.read(part, start + reader.at, whole, is_seen=True)
                reader.at += part.shape[1]
                done += part.shape[1]
                yield Progress("score", done / total, f"further pass {number} of {count}")
        prefill.observed[statistic] = reader.statistics
        prefill.gathered_ms[statistic] = stopwatch.timings_ms["pass"]
