"""Which variants still hold a passage: what `compare --evidence` and `analyse` read and print."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ckv_core.cli.tables import print_table, share
from ckv_core.errors import PromptError
from ckv_core.events import RunResult
from ckv_core.metrics.evidence import evidence, occurrences
from ckv_core.records import PromptInfo, VariantResult


@dataclass(frozen=True, slots=True)
class Held:
    """How much of a passage one variant holds, over all its occurrences.

    Attributes:
        entries: (layer, KV head, position) slots of the passage that are kept.
        slots: all of them.
        whole: (layer, KV head) pairs that hold an occurrence without a gap.
        heads: all such pairs, in layers that may lose entries.
        mean: share of the slots held, averaged over the occurrences.
        chance: what chance would hold of them.
    """

    entries: int
    slots: int
    whole: int
    heads: int
    mean: float
    chance: float


def spans_of(prompt: PromptInfo, text: str) -> list[tuple[int, int]]:
    """Where a text occurs in the compressed prompt; empty if it does not."""
    return occurrences(prompt.pieces[: prompt.compressed_tokens], text)


def check_evidence(prompt: PromptInfo, texts: Sequence[str]) -> None:
    """Refuse a passage that no variant could hold.

    Raises:
        PromptError: a text does not occur in the compressed prompt.
    """
    for text in texts:
        if not spans_of(prompt, text):
            raise PromptError(
                f"--evidence {text!r} does not occur in the compressed prompt; copy the words "
                "from the context."
            )


def held(
    variant: VariantResult, spans: Sequence[tuple[int, int]], layers: Sequence[int]
) -> Held | None:
    """What one variant holds; None for the full cache, or where there is no span.

    Args:
        variant: a finished one.
        spans: (first, end) positions of each occurrence.
        layers: that may lose entries.
    """
    if variant.retained is None or not spans or not layers:
        return None
    protected = {name: int(variant.params.get(name, 0)) for name in ("sinks", "window")}
    shares = [evidence(variant.retained, span, layers, protected) for span in spans]
    mask = variant.retained.mask()[list(layers)]
    parts = [mask[:, :, first:end] for first, end in spans]
    whole = np.any([part.all(axis=2) for part in parts], axis=0)
    return Held(
        entries=sum(int(part.sum()) for part in parts),
        slots=sum(part.size for part in parts),
        whole=int(whole.sum()),
        heads=whole.size,
        mean=sum(each.mean for each in shares) / len(shares),
        chance=sum(each.chance for each in shares) / len(shares),
    )


def print_evidence(result: RunResult, texts: Sequence[str]) -> None:
    """A table per passage, a row per variant that evicted something."""
    if result.prompt is None or result.model is None:
        return
    for text in texts:
        spans = spans_of(result.prompt, text)
        tokens = sum(end - first for first, end in spans)
        times = "once" if len(spans) == 1 else f"{len(spans)} times"
        print(f"\nevidence {text!r}: {times} in the compressed prompt, {tokens} tokens")
        rows = []
        for variant in result.variants:
            found = held(variant, spans, result.model.evictable_layers)
            if found is not None:
                rows.append(
                    (
                        variant.spec,
                        f"{found.entries:,} of {found.slots:,}",
                        share(found.mean),
                        share(found.chance),
                        f"{found.whole:,} of {found.heads:,}",
                    )
                )
        if rows:
            head = ("variant", "slots held", "share", "by chance", "heads that hold it whole")
            print_table(head, rows)
