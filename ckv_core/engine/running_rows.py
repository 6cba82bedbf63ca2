"""Greedy choice of tokens, and a batch whose rows stop at different times."""

import math

import torch
from torch import Tensor

from ckv_core.engine.decode import Decoder
from ckv_core.engine.generation import Generation, Generations
from ckv_core.errors import EngineError
from ckv_core.runtime.devices import is_cuda_like


def fetches_late(device: torch.device) -> bool:
    """Whether a step's tokens are fetched while the device computes the next step.

    On the CPU nothing is waited for, and a row that has stopped would take part in one step more.
    """
    return is_cuda_like(device)


class Chosen:
    """The most likely token of every row, on its way to the host with the check that there is one.

    Attributes:
        tokens: [rows] int64, on the device.
    """

    def __init__(self, logits: Tensor) -> None:
        """`logits` are [rows, vocabulary]; the device is not waited for."""
        best, self.tokens = logits.max(-1)  # NaN wins over every number
        # One tensor, so that the device is waited for once; float64 holds every token exactly.
        self._found = torch.stack([best.double(), self.tokens.double()])
        self._rows: list[int] | None = None
        self._arrived: torch.cuda.Event | None = None
        if is_cuda_like(logits.device):
            host = torch.empty_like(self._found, device="cpu", pin_memory=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._found = host.copy_(self._found, non_blocking=True)
            self._arrived.record(torch.cuda.current_stream(logits.device))

    def keep_rows(self, rows: list[int]) -> None:
        """Forget the others; asked at most once."""
        self.tokens, self._rows = self.tokens[rows], rows

    def read(self) -> list[int]:
        """The tokens, once they have arrived.

        EngineError where a row's logits hold NaN or infinity, as float16's overflow leaves them.
        """
        if self._arrived is not None:
            self._arrived.synchronize()
        values, ids = self._found.tolist()
        check_finite(values)
        return [int(ids[row]) for row in self._rows or range(len(ids))]


def next_tokens(logits: Tensor) -> list[int]:
    """The most likely token of every row of [rows, vocabulary]; see `Chosen.read`."""
    return Chosen(logits).read()


def check_finite(values: list[float]) -> None:
    """Refuse numbers that can be no result, NaN and infinity: EngineError."""
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

    def __init__(
        self, decoder: Decoder, generation: Generation | Generations, tokens: list[int]
    ) -> None:
        self.tokens = tokens
        self._decoder, self._generation = decoder, generation
        self._rows = list(range(len(tokens)))
        self._late = fetches_late(decoder.loaded.device)
        self._coming: Chosen | None = None  # of the rows that go on, fed but not yet read

    def step(self, logits: Tensor | None = None) -> None:
        """Choose the next token of every row that goes on.

        Where tokens are fetched late, the device is given the next step before this one's are read:
        what a row that has stopped gets there is thrown away. `logits` [rows, vocabulary] are of
        all rows, if the last tokens have been fed already.
        """
        stopped = self._generation.stopped
        running = [at for at, row in enumerate(self._rows) if stopped[row] is None]
        if len(running) < len(self._rows):
            self._decoder.context.keep_rows(running)
            self._rows = [self._rows[at] for at in running]
            logits = None if logits is None else logits[running]
            if self._coming is not None:
                self._coming.keep_rows(running)
        chosen, self._coming = self._coming, None
        if chosen is None:
            if logits is None:
                last = [[self.tokens[row]] for row in self._rows]
                logits = self._decoder.feed(torch.tensor(last, device=self._decoder.loaded.device))
            chosen = Chosen(logits)
        if self._late and self._generation.left > 1:
            fed = chosen.tokens[:, None].to(self._decoder.loaded.device)  # of a model on several
            self._coming = Chosen(self._decoder.feed(fed))
        for row, token in zip(self._rows, chosen.read(), strict=True):
            self.tokens[row] = token
