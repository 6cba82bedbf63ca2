"""Which variants still hold a passage or the reference answer: what `compare` prints of it."""

from collections.abc import Sequence

from ckv_core.analysis.evidence import held
from ckv_core.cli.tables import print_table, share
from ckv_core.errors import PromptError
from ckv_core.results.events import RunResult
from ckv_core.results.passages import spans_of
from ckv_core.results.records import PromptInfo
from ckv_core.runtime.terminal import say


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


def print_evidence(result: RunResult, texts: Sequence[str], answer: str) -> None:
    """A table per passage, a row per variant that evicted something.

    Args:
        result: the run.
        texts: passages that occur.
        answer: the reference answer, shown where it occurs.
    """
    if result.prompt is None or result.model is None:
        return
    for text in dict.fromkeys((*texts, answer)):
        spans = spans_of(result.prompt, text)
        if not spans:  # of the answer; the head of what is printed says so
            continue
        tokens = sum(end - first for first, end in spans)
        times = "once" if len(spans) == 1 else f"{len(spans)} times"
        kind = "evidence" if text in texts else "reference answer"
        say(f"\n{kind} {text!r}: {times} in the compressed prompt, {tokens} tokens")
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
            head = ("variant", "slots kept", "share", "expected at random", "heads keeping all")
            print_table(head, rows)
