"""Greedy choice of tokens, and a batch whose rows stop at different times."""

import math

import torch
from torch import Tensor

from ckv_core.engine.decode import Decoder
from ckv_core.engine.generation import Generation
from ckv_core.errors import EngineError


def next_tokens(logits: Tensor) -> list[int]:
    """The most likely token of every row, fetched together with the check that there is one.

    Args:
        logits: [rows, vocabulary].

    Raises:
        EngineError: a row's logits hold NaN or infinity, as after an overflow of half precision.
    """
    best, tokens = logits.max(-1)  # NaN wins over every number
    # One tensor, so that the device is waited for once; float64 holds every token exactly.
    values, ids = torch.stack([best.double(), tokens.double()]).tolist()
    check_finite(values)
    return [int(token) for token in ids]


def check_finite(values: list[float]) -> None:
    """Refuse numbers that can be no result.

    Raises:
        EngineError: one is NaN or infinite.
    """
    if not all(map(math.isfinite, values)):
        raise EngineError(
            "The model's output is not finite (NaN or infinity), so nothing of this run can be "
            "right. With float16 choose bfloat16 or float32; with those, fetch the model's "
            "weights anew."
        )


class RunningRows:
    """Feeds each row its own last token; a row that has stopped costs nothing from then on.

    Attributes:
        tokens: the last token of every row, those that have left too.
    """

    def __init__(self, decoder: Decoder, generation: Generation, tokens: list[int]) -> None:
        self.tokens = tokens
        self._decoder, self._generation = decoder, generation
        self._rows = list(range(len(tokens)))

    def step(self, logits: Tensor | None = None) -> None:
        """Choose the next token of every row that goes on.

        Args:
            logits: [rows, vocabulary] of all rows, if the last tokens have been fed already.
        """
        stopped = self._generation.stopped
        running = [at for at, row in enumerate(self._rows) if stopped[row] is None]
        if len(running) < len(self._rows):
            self._decoder.context.keep_rows(running)
            self._rows = [self._rows[at] for at in running]
            logits = None if logits is None else logits[running]
        if logits is None:
            device = self._decoder.loaded.device
            fed = torch.tensor([[self.tokens[row]] for row in self._rows], device=device)
            logits = self._decoder.feed(fed)
        for row, token in zip(self._rows, next_tokens(logits), strict=True):
            self.tokens[row] = token
