"""Who still holds a passage: where a text lies in the prompt, and which slots kept it. No torch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ckv_core.errors import PromptError
from ckv_core.records import Float32Array, RetainedSet


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvidenceShares:
    """How much of a span one variant holds, 0 to 1.

    Attributes:
        per_layer: [layers] share of the span's (KV head, position) slots held; NaN in layers
            that are not evictable.
        mean: over the evictable layers.
        chance_per_layer: [layers] what the layer's budget would hold of it by chance.
        chance: mean of that over the evictable layers.
    """

    per_layer: Float32Array
    mean: float
    chance_per_layer: Float32Array
    chance: float


def occurrences(pieces: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Token spans in which a text occurs, ignoring case and spacing as `answer_found` does.

    Args:
        pieces: text of each token, in order; give the compressed ones to search only those.
        text: what to look for; it may begin and end inside a token.

    Returns:
        (first, end) token indices of each occurrence, in order, not overlapping; empty if the
        text is blank or does not occur.
    """
    words = text.casefold().split()
    if not words:
        return []
    folded = [piece.casefold() for piece in pieces]
    ends = np.cumsum([len(piece) for piece in folded])
    found = re.finditer(r"\s+".join(map(re.escape, words)), "".join(folded))
    borders = np.array([(match.start(), match.end() - 1) for match in found]).reshape(-1, 2)
    tokens = np.searchsorted(ends, borders, side="right")
    return [(int(first), int(last) + 1) for first, last in tokens]


def evidence(
    retained: RetainedSet,
    span: tuple[int, int],
    evictable_layers: Sequence[int],
    protected: Mapping[str, int],
) -> EvidenceShares:
    """Share of a span's slots that one variant holds, and what chance would hold.

    Chance, per layer: with n positions, P of them protected, p of the span's s positions
    protected and K slots kept in G KV heads, the K - G P slots beyond the protected ones lie
    anywhere in the n - P others with equal probability. Expected share
    = (p + (s - p) (K - G P) / (G (n - P))) / s; protected positions count 1.

    Args:
        retained: what the variant kept.
        span: (first, end) positions, inside the compressed prompt.
        evictable_layers: layers that may lose entries.
        protected: first tokens (`sinks`) and last tokens (`window`) that are always kept.

    Raises:
        PromptError: the span is empty or not inside the compressed prompt.
    """
    first, end = span
    positions, heads = retained.positions, retained.kv_heads
    if not 0 <= first < end <= positions:
        raise PromptError(
            f"Tokens {first:,} to {end:,} are not a passage of the compressed prompt, which has "
            f"{positions:,} tokens; select text inside it."
        )
    mask = retained.mask()[list(evictable_layers)]
    fixed = np.zeros(positions, dtype=np.bool_)
    fixed[: protected.get("sinks", 0)] = True
    fixed[max(positions - protected.get("window", 0), 0) :] = True
    spare = mask.sum(axis=(1, 2)) - heads * fixed.sum()
    by_chance = spare / max(heads * int((~fixed).sum()), 1)
    in_span = float(fixed[first:end].mean())
    held = mask[:, :, first:end].mean(axis=(1, 2))
    chance = in_span + (1.0 - in_span) * by_chance
    per_layer = np.full(retained.layers, np.nan, dtype=np.float32)
    chance_per_layer = per_layer.copy()
    per_layer[list(evictable_layers)] = held
    chance_per_layer[list(evictable_layers)] = chance
    return EvidenceShares(
        per_layer=per_layer,
        mean=float(held.mean()),
        chance_per_layer=chance_per_layer,
        chance=float(chance.mean()),
    )
