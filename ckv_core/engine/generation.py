"""The texts that grow while decoding: tokens, stop reasons, incremental detokenisation."""

import time
from collections.abc import Sequence
from typing import Literal

from transformers import PreTrainedTokenizerBase

from ckv_core.events import Generated

_INTERVAL_S = 0.07  # coalesce: more updates a second than a page can show help nobody
_INCOMPLETE = "\ufffd"  # what a tokenizer prints for a character whose bytes are not all there


class Generation:
    """Generated tokens of all rows.

    Attributes:
        token_ids: per row, the end token included.
        stopped: per row; None while it runs.
        decode_ms: per row, decoding time until it stopped.
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
        self.decode_ms: list[float] = [0.0] * rows
        self._texts: list[list[str]] = [[] for _ in range(rows)]

    @property
    def running(self) -> bool:
        """Whether any row goes on."""
        return None in self.stopped

    def append(self, tokens: Sequence[int], elapsed_ms: float) -> None:
        """Take one token per row; rows that have stopped ignore theirs.

        Args:
            tokens: [rows].
            elapsed_ms: decoding time so far.
        """
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
            self.decode_ms[row] = elapsed_ms

    def _new_text(self, row: int) -> str:
        """What the newest token adds; nothing while a character is incomplete."""
        before = "".join(self._texts[row])
        text = str(self._tokenizer.decode(self.token_ids[row], skip_special_tokens=True))
        last = len(self.token_ids[row]) == self._max_new_tokens
        if text.endswith(_INCOMPLETE) and not last:
            return ""
        return text[len(before) :]

    def text(self, row: int) -> str:
        """All text of one row."""
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
