"""Rows of several runs that wait for one another and are decoded in one batch."""

from collections.abc import Callable, Sequence

import torch

from ckv_core.engine.decode import DecodeContext, Decoder, Part
from ckv_core.engine.generation import Generation, Generations
from ckv_core.engine.running_rows import RunningRows
from ckv_core.models.loaded import LoadedModel


class SharedDecode:
    """Takes the rows of one run after another; `decode` takes all of them to their ends.

    Attributes:
        rows: how many wait.
    """

    def __init__(self, loaded: LoadedModel, should_stop: Callable[[], bool]) -> None:
        self._loaded, self._should_stop = loaded, should_stop
        self._parts: list[Part] = []
        self._generations: list[Generation] = []
        self._tokens: list[int] = []

    @property
    def rows(self) -> int:
        return len(self._tokens)

    def join(self, parts: Sequence[Part], generation: Generation, tokens: Sequence[int]) -> None:
        """Let a run's rows wait; `tokens` are the last of every row, not yet fed."""
        for part in parts:
            part.places = [self.rows + place for place in part.places]
        self._parts += parts
        self._generations.append(generation)
        self._tokens += tokens

    @torch.inference_mode()
    def decode(self) -> None:
        """Generate until every row has stopped. Nobody waits any more, whatever happens.

        Raises:
            EngineError: logits of some row are not finite.
            RunCancelledError: should_stop said so.
        """
        context = DecodeContext(self._loaded, self._parts, self._should_stop)
        generations, tokens = Generations(self._generations), self._tokens
        self._parts, self._generations, self._tokens = [], [], []
        rows = RunningRows(Decoder(self._loaded, context), generations, tokens)
        while generations.running:
            rows.step()
            generations.append(rows.tokens)
