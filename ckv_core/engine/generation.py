"""The texts that grow while decoding: tokens, stop reasons, incremental detokenisation."""

import math
import time
from collections.abc import Sequence
from itertools import islice
from random import Random
from typing import Literal, Self

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ckv_core.base.devices import is_cuda_like
from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.rows import Rows
from ckv_core.errors import EngineError
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.events import Generated
from ckv_core.records.run_request import Repeats, RunRequest
from ckv_core.records.work_requests import AskRequest

_INTERVAL_S = 0.07  # coalesce: more updates a second than a page can show help nobody
_INCOMPLETE = "\ufffd"  # what a tokenizer prints for a character whose bytes are not all there


class Generation:
    """Generated tokens of all rows.

    Attributes:
        token_ids: per row, the end token included.
        stopped: per row; None while it runs.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        rows: int,
        max_new_tokens: int,
        end_tokens: frozenset[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._max_new_tokens = max_new_tokens
        self._end_tokens = end_tokens
        self._sent = time.perf_counter()
        self.token_ids: list[list[int]] = [[] for _ in range(rows)]
        self.stopped: list[Literal["eos", "length"] | None] = [None] * rows
        self._texts: list[list[str]] = [[] for _ in range(rows)]
        # Per row, the tokens that the newest stable text came from: (first, end).
        self._stable: list[tuple[int, int]] = [(0, 0)] * rows

    @classmethod
    def of(cls, loaded: LoadedModel, rows: int, request: RunRequest | AskRequest) -> Self:
        """The generation ends as the request says, and at the model's end tokens if they count."""
        ends = frozenset() if request.ignore_eos else loaded.eos_token_ids
        return cls(loaded.tokenizer, rows, request.max_new_tokens, ends)

    @property
    def running(self) -> bool:
        return None in self.stopped

    @property
    def left(self) -> int:
        """Tokens that a row which goes on may still take."""
        taken = [
            len(ids) for ids, stop in zip(self.token_ids, self.stopped, strict=True) if not stop
        ]
        return self._max_new_tokens - min(taken, default=self._max_new_tokens)

    def append(self, tokens: Sequence[int]) -> None:
        """Take one token per row, [rows]; rows that have stopped ignore theirs."""
        for row, token in enumerate(tokens):
            if self.stopped[row] is not None:
                continue
            ids = self.token_ids[row]
            ids.append(token)
            self._texts[row].append(self._new_text(row))
            if token in self._end_tokens:
                self.stopped[row] = "eos"
            elif len(ids) == self._max_new_tokens:
                self.stopped[row] = "length"

    def _new_text(self, row: int) -> str:
        """Returns the text that the newest token adds; nothing while a character is incomplete.

        Decodes from the last stable piece of text on, for all of it would cost more with every
        token; that piece itself is decoded too, since some tokenizers drop the blank before a
        text's first word.
        """
        ids, (first, end) = self.token_ids[row], self._stable[row]
        text = self._decode(ids[first:])
        if text.endswith(_INCOMPLETE) and len(ids) != self._max_new_tokens:
            return ""
        new = text[len(self._decode(ids[first:end])) :]
        if new:  # a special token shows nothing, so that no piece may begin with it
            self._stable[row] = (end, len(ids))
        return new

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def text(self, row: int) -> str:
        return "".join(self._texts[row])

    def token_texts(self, row: int) -> tuple[str, ...]:
        """Returns the text that each token of one row added."""
        return tuple(self._texts[row])

    def due(self) -> bool:
        """Whether an update should be sent now; asking counts as sending."""
        now = time.perf_counter()
        if self.running and now - self._sent < _INTERVAL_S:
            return False
        self._sent = now
        return True

    def event(self, rows: int) -> Generated:
        """State of the first `rows` rows."""
        return Generated(
            texts=tuple(self.text(row) for row in range(rows)),
            token_ids=tuple(tuple(ids) for ids in self.token_ids[:rows]),
            token_texts=tuple(self.token_texts(row) for row in range(rows)),
            stopped=tuple(self.stopped[:rows]),
        )


def fetches_late(device: torch.device) -> bool:
    """Whether a step's tokens are fetched while the device computes the next step.

    On the CPU nothing is waited for, and a row that has stopped would take part in one step more.
    """
    return is_cuda_like(device)


class Draw:
    """Draws tokens of one sampled text.

    All rows of a step share one random number, so that rows of equal logits write the same text.
    """

    def __init__(self, repeats: Repeats, number: int) -> None:
        self._repeats = repeats
        self._random = Random(f"{repeats.seed}/{number}")  # noqa: S311 - no secret

    def tokens(self, logits: Tensor) -> Tensor:
        """One token per row of [rows, vocabulary], [rows] int64."""
        likely = (logits.double() / self._repeats.temperature).softmax(-1)
        shares, tokens = likely.sort(stable=True, dim=-1, descending=True)
        before = shares.cumsum(-1) - shares
        mass = shares.where(before < self._repeats.top_p, 0.0).cumsum(-1)
        at = (mass <= self._random.random() * mass[:, -1:]).sum(-1, keepdim=True)
        return tokens.gather(-1, at)[:, 0]


class Chosen:
    """The most likely token of every row, on its way to the host with the check that there is one.

    With a draw it is that one's token. From logits [rows, vocabulary] to `tokens` [rows] int64 on
    the device, which is waited for only with a draw.
    """

    def __init__(self, logits: Tensor, draw: Draw | None = None) -> None:
        best, self.tokens = logits.max(-1)  # NaN wins over every number
        if draw is not None and bool(best.isfinite().all()):
            self.tokens = draw.tokens(logits)
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
        """Forget the others; called at most once."""
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


def next_tokens(logits: Tensor, draw: Draw | None = None) -> list[int]:
    """The next token of every row of [rows, vocabulary]; see `Chosen`."""
    return Chosen(logits, draw).read()


def check_finite(values: list[float]) -> None:
    """Refuse numbers that can be no result, NaN and infinity: EngineError."""
    if not all(map(math.isfinite, values)):
        raise EngineError(
            "The model's output is not finite (NaN or infinity), so nothing of this run can be "
            "right. With float16 choose bfloat16 or float32; with those, fetch the model's "
            "weights again."
        )


class RunningRows:
    """Feeds each row its own last token; a row that has stopped costs nothing from then on.

    Attributes:
        tokens: the last token of every row, those that have left too.
    """

    def __init__(
        self,
        decoder: Decoder,
        generations: Sequence[Generation],
        tokens: list[int],
        draw: Draw | None = None,
    ) -> None:
        """Begin with the rows of one generation after those of another."""
        self.tokens, self._draw = tokens, draw
        self._decoder, self._generations = decoder, generations
        self._rows = list(range(len(tokens)))
        self._late = fetches_late(decoder.loaded.device)
        self._coming: Chosen | None = None  # of the rows that go on, fed but not yet read

    def step(self, logits: Tensor | None = None) -> None:
        """Choose the next token of every row that goes on.

        `logits` [rows, vocabulary] are of all rows, if the last tokens have been fed already.
        """
        stopped = [reason for each in self._generations for reason in each.stopped]
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
            chosen = Chosen(logits, self._draw)
        # What a row that stops here gets of the next step is thrown away.
        if self._late and max(each.left for each in self._generations) > 1:
            fed = chosen.tokens[:, None].to(self._decoder.loaded.device)  # of a model on several
            self._coming = Chosen(self._decoder.feed(fed), self._draw)
        for row, token in zip(self._rows, chosen.read(), strict=True):
            self.tokens[row] = token

    def append(self) -> None:
        """Give each generation the last tokens of its rows."""
        tokens = iter(self.tokens)
        for each in self._generations:
            each.append(list(islice(tokens, len(each.token_ids))))


class SharedDecode:
    """Takes the rows of one run after another; `decode` takes all of them to their ends.

    Attributes:
        rows: how many wait.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._parts: list[Rows] = []
        self._generations: list[Generation] = []
        self._tokens: list[int] = []

    @property
    def rows(self) -> int:
        return len(self._tokens)

    def join(self, parts: Sequence[Rows], generation: Generation, tokens: Sequence[int]) -> None:
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
        """
        context = DecodeContext(self._loaded, self._parts, lambda: False)
        generations, tokens = self._generations, self._tokens
        self._parts, self._generations, self._tokens = [], [], []
        rows = RunningRows(Decoder(self._loaded, context), generations, tokens)
        while any(each.running for each in generations):
            rows.step()
            rows.append()
