"""Eviction while generating, literally: the full cache, and per head a list of what is held.

A policy is a function of the step, the layer, each head's held positions and the newest query's
attention; it gives the positions that each head goes on with. What it evicted is masked.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import DynamicCache

from tests.reference.forward import Kept, Tap, forward

Held = list[list[int]]  # of one layer, ascending positions by KV head
LiteralPolicy = Callable[[int, int, Held, Tensor], Held]


def decode(
    model: Any,
    cache: DynamicCache,
    kept: Kept,
    read: list[int],
    generated: list[int],
    policy: LiteralPolicy,
) -> tuple[list[Tensor], list[Held | None]]:
    """Feed a question, then generated tokens; the policy acts after each of the latter.

    Args:
        model: with eager attention.
        cache: of the whole prompt.
        kept: what selection kept of it.
        read: the question's tokens, all of whose entries are held at first; may be empty.
        generated: tokens to feed one by one.
        policy: given step (from 1), layer, held positions and attention [query_heads, positions].

    Returns:
        Logits after each generated token, and what is held at the end, None where all is.
    """
    held: list[Held | None] = [
        None if heads is None else [[i for i, keep in enumerate(row) if keep] for row in heads]
        for heads in kept
    ]
    length = cache.get_seq_length()
    if read:
        forward(model, read, cache, kept=kept)
        for layer in held:
            for row in layer or []:
                row.extend(range(length, length + len(read)))
        length += len(read)
    found = []
    for step, token in enumerate(generated, start=1):
        tap = Tap(rows=1)
        now: Kept = [
            None if layer is None else [[i in set(row) for i in range(length)] for row in layer]
            for layer in held
        ]
        found.append(forward(model, [token], cache, tap=tap, kept=now))
        for index, layer in enumerate(held):
            if layer is not None:
                with_own = [[*row, length] for row in layer]
                held[index] = policy(step, index, with_own, tap.attention[index][:, 0])
        length += 1
    return found, held
