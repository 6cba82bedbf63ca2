"""Recent prefills of one model, so that a prompt or a start known from one is not read again."""

from collections import OrderedDict
from collections.abc import Sequence

from ckv_core.engine.prefill import Needs, Prefill, Prefix, chunk_tokens
from ckv_core.models.rope import length_dependent
from ckv_core.models.shape import KEPT_QUERIES

KEPT_PREFILL_BYTES = 2**30  # per model; about 20 prompts of 1,000 tokens on the default model


class PrefillCache:
    """Least recently used prefills are dropped first; bounded in bytes, of which 0 keeps none."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._prefills: OrderedDict[tuple[int, ...], Prefill] = OrderedDict()

    def __contains__(self, prefill: Prefill) -> bool:
        return any(each is prefill for each in self._prefills.values())

    def get(self, token_ids: Sequence[int], needs: Needs) -> Prefill | None:
        """The prefill of exactly these tokens, if it is here with all that is needed."""
        key = tuple(token_ids)
        kept = self._prefills.get(key)
        if kept is None or not kept.serves(needs):
            return None
        self._prefills.move_to_end(key)
        return kept

    def prefix(self, token_ids: Sequence[int], needs: Needs) -> Prefix | None:
        """The longest start of these tokens that is here, in whole chunks; None if there is none.

        At least the needed window is left to be read, for of a prompt only the last queries are
        kept. There is none for observers, which have to see all, where the factors of RoPE depend
        on the whole length, nor one whose sliding layers have let go of what comes before its end.
        """
        if needs.observers or not self._prefills:
            return None
        wanted = tuple(token_ids)
        device = next(iter(self._prefills.values())).loaded.device  # all are of one model
        chunk = chunk_tokens(device)
        most = (len(wanted) - max(needs.window, KEPT_QUERIES)) // chunk * chunk
        found = {}
        for key, kept in self._prefills.items():
            tokens = 0  # of the whole chunks that both start with
            while tokens < most and key[tokens : tokens + chunk] == wanted[tokens : tokens + chunk]:
                tokens += chunk
            if tokens and kept.lends(tokens):
                found[key] = tokens
        key = max(found, key=lambda each: found[each], default=())
        if key not in found or length_dependent(self._prefills[key].loaded.model):
            return None
        self._prefills.move_to_end(key)
        return Prefix(self._prefills[key], found[key])

    def put(self, token_ids: Sequence[int], prefill: Prefill) -> None:
        """Keep a prefill; one that alone is over the bound is not kept."""
        self._prefills[tuple(token_ids)] = prefill
        self._prefills.move_to_end(tuple(token_ids))
        self.trim()

    def trim(self) -> None:
        """Keep to the bound; a run adds scores to a prefill that is already here."""
        for key in [key for key, each in self._prefills.items() if each.nbytes > self._max_bytes]:
            del self._prefills[key]
        while self._prefills and self.nbytes > self._max_bytes:
            self._prefills.popitem(last=False)

    def keep_only(self, token_ids: Sequence[int], needs: Needs) -> None:
        """Drop all but what `get` has for these tokens."""
        kept = self.get(token_ids, needs)
        self._prefills.clear()
        if kept is not None:
            self._prefills[tuple(token_ids)] = kept

    def clear(self) -> None:
        self._prefills.clear()

    @property
    def nbytes(self) -> int:
        return sum(prefill.nbytes for prefill in self._prefills.values())
