"""Decoding steps recorded as a CUDA graph and replayed, where a step's launches cost the most.

The host needs longer to launch the thousand kernels of a step of few rows than the device needs to
run them. A graph launches them at once, but reads and writes the same addresses each time: so the
token, its position and the place of its entries lie on the device, and attention to the tail takes
the entries that are used of all that there is room for.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor

from ckv_core.base.devices import is_cuda_like
from ckv_core.engine.cache.slots import Pace, SlotCache
from ckv_core.engine.rows import PolicyRow, Rows
from ckv_core.errors import is_out_of_memory
from ckv_core.models.loaded import LoadedModel

_LOG = logging.getLogger(__name__)
# Steps of the same rows that are computed as always; recording costs about as much as two.
_USUAL = 3
SETTLED = _USUAL + 2  # steps after which each further one is replayed


def can_record(loaded: LoadedModel) -> bool:
    """Whether steps of this model have a fixed shape, and run on one device that has graphs.

    A sliding window ends elsewhere in each step, and what linear layers carry lies elsewhere. Some
    kinds of RoPE look at the positions. Which experts a token goes to is looked up by the host.
    """
    ropes = (str(getattr(module, "rope_type", "")) for module in loaded.model.modules())
    return (
        is_cuda_like(loaded.device)
        and len(loaded.devices) == 1
        and not any(loaded.sliding_windows)
        and not loaded.linears
        and not any("longrope" in rope or "dynamic" in rope for rope in ropes)
        and not any(weight.dim() == 3 for part in loaded.layers for weight in part.parameters())
    )


def _recorded(work: Callable[[], None]) -> Callable[[], None]:
    """Let CUDA record what `work` launches; nothing is run. The answer runs it."""
    graph = torch.cuda.CUDAGraph()
    # Other threads may go on: one of them tells how much memory is free.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph.replay


# Of each part: which it is, its places, its next position and how long its tail is.
_State = list[tuple[int, tuple[int, ...], int, int]]


# Logits [rows, 1, vocabulary] of tokens and positions, both [rows, 1].
Forward = Callable[[Tensor, Tensor], Tensor]


class StepGraph:
    """Replays the steps of rows that stay the same, from the fifth on."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._device = loaded.device
        self._is_possible = can_record(loaded)
        self._expected: _State = []
        self._steps = 0  # of the same rows
        self._replay: Callable[[], None] | None = None
        self._paces: list[Pace] = []  # of each part
        self._layers: list[tuple[SlotCache, Pace]] = []
        self._tokens = self._positions = self._logits = torch.empty(0)

    def step(self, parts: list[Rows], tokens: Tensor, forward: Forward) -> Tensor | None:
        """Logits [rows, 1, vocabulary] after one token of each row, [rows, 1], in order of place.

        None where the step is to be computed as always. The caller commits either way.
        """
        if not self._is_possible or any(isinstance(part, PolicyRow) for part in parts):
            return None
        state = [
            (id(part), tuple(part.places), part.position, cast(SlotCache, part.layers[0]).length)
            for part in parts
        ]
        self._steps = self._steps + 1 if state == self._expected else 1
        self._expected = [
            (part, places, position + 1, length + 1) for part, places, position, length in state
        ]
        if self._steps == 1:
            self._forget()
        if self._steps <= _USUAL:
            return None
        try:
            return self._fixed(parts, tokens, forward)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            _LOG.warning("Steps are not recorded as a CUDA graph: %s", error)
            self._is_possible = False
            self._forget()
            return None

    def _fixed(self, parts: list[Rows], tokens: Tensor, forward: Forward) -> Tensor:
        """The step in its fixed form: run at first, to warm up, then recorded, then replayed."""
        if self._steps == _USUAL + 1:
            self._begin(parts, tokens)
            self._run(forward)
        else:
            self._tokens.copy_(tokens)
            if self._replay is None:
                self._replay = _recorded(partial(self._run, forward))
            self._replay()
        for layer, _ in self._layers:
            layer.seen = layer.length + 1
        return self._logits.clone()  # the next replay writes over them

    def _run(self, forward: Forward) -> None:
        """Run one pass and go on to the next token's place; this is recorded."""
        for layer, pace in self._layers:
            layer.pace = pace
        try:
            self._logits = forward(self._tokens, self._positions)
        finally:  # passes of another kind may come between
            for layer, _ in self._layers:
                layer.pace = None
        self._positions.add_(1)
        for pace in self._paces:
            pace.advance()

    def _begin(self, parts: list[Rows], tokens: Tensor) -> None:
        """Put on the device what differs from step to step."""
        start_of = {place: part.position for part in parts for place in part.places}
        starts = [[start_of[place]] for place in sorted(start_of)]
        self._tokens = tokens.clone()
        self._positions = torch.tensor(starts, device=self._device)
        layers = [cast("list[SlotCache]", part.layers) for part in parts]
        self._paces = [own[0].own_pace() for own in layers]
        self._layers = [
            (layer, pace) for own, pace in zip(layers, self._paces, strict=True) for layer in own
        ]

    def _forget(self) -> None:
        """Let go of a recording: its rows are no longer the same."""
        self._replay, self._paces, self._layers = None, [], []
