"""Whether a text repeats itself to its end, so that no higher limit would bring an answer."""

from collections.abc import Sequence

MAX_BLOCK = 64  # tokens that repeat
LEAST_REPEATS = 3
LEAST_TOKENS = 16


def loops(token_ids: Sequence[int]) -> bool:
    """Whether the last tokens are one block over and over.

    A block of up to 64 tokens, at least three times in a row and over at least 16 tokens; the
    last time may be broken off.
    """
    count = len(token_ids)
    for size in range(1, min(MAX_BLOCK, count // LEAST_REPEATS) + 1):
        needed = max(LEAST_REPEATS * size, LEAST_TOKENS)
        if count >= needed and all(
            token_ids[at] == token_ids[at - size]
            for at in range(count - 1, count - 1 - (needed - size), -1)
        ):
            return True
    return False
