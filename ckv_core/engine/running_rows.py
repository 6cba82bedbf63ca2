"""One step after another of a batch whose rows stop at different times."""

import torch
from torch import Tensor

from ckv_core.engine.decode import Decoder
from ckv_core.engine.generation import Generation


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
        for row, token in zip(self._rows, logits.argmax(-1).tolist(), strict=True):
            self.tokens[row] = token
