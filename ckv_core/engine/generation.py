"""The texts that grow while decoding: tokens, stop reasons, incremental detokenisation."""

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from transformers import PreTrainedTokenizerBase

from ckv_core.results.events import Generated

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
        """What the newest token adds; nothing while a character is incomplete.

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
        """What each token of one row added to its text."""
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


class Generations:
    """Those of several runs as one, with the rows of one after another; see `Generation`."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self._each = generations
        self._ends = [*accumulate(len(each.token_ids) for each in generations)]

    @property
    def stopped(self) -> list[Literal["eos", "length"] | None]:
        return [reason for each in self._each for reason in each.stopped]

    @property
    def running(self) -> bool:
        return any(each.running for each in self._each)

    @property
    def left(self) -> int:
        return max(each.left for each in self._each)

    def append(self, tokens: Sequence[int]) -> None:
        for each, start, end in zip(self._each, [0, *self._ends], self._ends, strict=False):
            each.append(tokens[start:end])
