"""Who still holds a passage: where a text lies in the prompt, and which slots kept it. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ckv_core.base.spans import read_ranges
from ckv_core.errors import PromptError
from ckv_core.methods.parameters import ParameterValue
from ckv_core.records.records import RetainedSet, VariantResult


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """How much of a passage one variant holds, over all its occurrences; shares are 0 to 1.

    Attributes:
        entries: (layer, KV head, position) slots of the passage that are kept.
        slots: all of them, in layers that may lose entries.
        whole: (layer, KV head) pairs that hold an occurrence without a gap.
        heads: all such pairs.
        mean: share of an evictable layer's slots kept, over the occurrences and these layers.
        chance: what such a layer's budget would hold of it by chance, over the same.
    """

    entries: int
    slots: int
    whole: int
    heads: int
    mean: float
    chance: float


def held(
    variant: VariantResult, spans: Sequence[tuple[int, int]], layers: Sequence[int]
) -> Held | None:
    """What one variant holds; None for the full cache, or where there is no span or layer.

    `evidence` has the arguments.
    """
    if variant.retained is None or not spans or not layers:
        return None
    return evidence(variant.retained, spans, layers, variant.params)


def evidence(
    retained: RetainedSet,
    spans: Sequence[tuple[int, int]],
    layers: Sequence[int],
    protected: Mapping[str, ParameterValue],
) -> Held:
    """What one variant holds of a passage, and what chance would hold.

    Chance, per layer: with n positions, P of them protected, p of a span's s positions
    protected and K slots kept in G KV heads, the K - G P slots beyond the protected ones lie
    anywhere in the n - P others with equal probability. Expected share
    = (p + (s - p) (K - G P) / (G (n - P))) / s; protected positions count 1.

    Args:
        retained: what the variant kept.
        spans: (first, end) positions of each occurrence, inside the compressed prompt.
        layers: those that may lose entries; at least one.
        protected: first tokens (`sinks`) and last tokens (`window`) that are always kept, and
            positions besides (`protected`, `question_at`, as `ranges_text` writes them).

    Raises:
        PromptError: a span is empty or not inside the compressed prompt.
    """
    positions, kv_heads = retained.positions, retained.kv_heads
    for first, end in spans:
        if not 0 <= first < end <= positions:
            raise PromptError(
                f"Tokens {first:,} to {end:,} are not a passage of the compressed prompt, which "
                f"has {positions:,} tokens; select text inside it."
            )
    mask, borders = retained.mask(), np.array(spans)
    tokens = borders[:, 1] - borders[:, 0]
    fixed = _fixed(protected, positions)
    in_span = _counts(fixed, borders) / tokens
    free = kv_heads * int((~fixed).sum())
    shares, by_chance = [], []  # a layer each
    entries = whole = 0
    for layer in layers:
        kept = _counts(mask[layer], borders)
        entries += int(kept.sum())
        whole += int((kept == tokens).any(axis=1).sum())
        chosen = (int(mask[layer].sum()) - kv_heads * int(fixed.sum())) / max(free, 1)
        shares.append((kept / tokens).mean())
        by_chance.append((in_span + (1.0 - in_span) * chosen).mean())
    heads = len(layers) * kv_heads
    return Held(
        entries=entries,
        slots=heads * int(tokens.sum()),
        whole=whole,
        heads=heads,
        mean=float(np.mean(shares)),
        chance=float(np.mean(by_chance)),
    )


def _fixed(params: Mapping[str, ParameterValue], positions: int) -> NDArray[np.bool_]:
    """What is always kept, [positions]; an imported run may say anything of it."""
    ends = {name: params.get(name) for name in ("sinks", "window")}
    sinks, window = (n if isinstance(n, int) and n > 0 else 0 for n in ends.values())
    fixed = np.zeros(positions, dtype=np.bool_)
    fixed[:sinks] = True
    fixed[max(positions - window, 0) :] = True
    for name in ("protected", "question_at"):
        for place in read_ranges(params.get(name), positions):
            fixed[place.start : place.stop] = True
    return fixed


def _counts(mask: NDArray[np.bool_], borders: NDArray[np.int64]) -> NDArray[np.int32]:
    """True values of [..., positions] inside each of [spans, 2], as [..., spans].

    By running sums: a word of one letter may occur thousands of times.
    """
    before = np.zeros((*mask.shape[:-1], mask.shape[-1] + 1), np.int32)
    np.cumsum(mask, axis=-1, out=before[..., 1:])
    counts: NDArray[np.int32] = before[..., borders[:, 1]] - before[..., borders[:, 0]]
    return counts
