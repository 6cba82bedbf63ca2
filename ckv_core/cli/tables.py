"""Plain tables, and what `compare`, `sweep` and `analyse` print alike."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckv_core.events import RunResult
from ckv_core.ladder import ladder_of
from ckv_core.memory_line import memory_line
from ckv_core.metrics.evidence import occurrences
from ckv_core.records import VariantResult
from ckv_core.sweep_reading import FIGURES

if TYPE_CHECKING:  # it loads scipy, which takes a second
    from ckv_core.metrics.intervals import Interval

GENERATION_TITLE = (
    "\nown generation; agreement: share of the full cache's tokens before the first difference"
)
SCORES = {  # figures of a generated text against the reference answer
    "answer": "answer found",
    "exact_match": "exact match",
    "token_f1": "token F1",
    "edit_similarity": "edit similarity",
}


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell; the first to the left, figures to the right."""
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    for row in table:
        first, *figures = row
        cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:], strict=True)]
        print("  ".join([f"{first:<{widths[0]}}", *cells]).rstrip())


def number(value: float | None) -> str:
    """Four digits that mean something, no -0; a dash for what is not known."""
    return "-" if value is None else f"{value:z.4g}"


def share(value: float | None) -> str:
    """Percent, or a dash."""
    return "-" if value is None else f"{value:z.1%}"


def interval(found: "Interval | None", *, percent: bool = False) -> str:
    """`12.3 [11.8, 12.9]`; without the brackets where there is no interval."""
    if found is None:
        return "-"
    shown = share if percent else number
    if found.low is None:
        return shown(found.mean)
    return f"{shown(found.mean)} [{shown(found.low)}, {shown(found.high)}]"


def print_head(result: RunResult, answer: str = "") -> None:
    """Model, prompt and memory in a line each; and whether a reference answer can be found."""
    if result.model is None or result.prompt is None:
        return
    prompt, model = result.prompt, result.model
    print(
        f"{model.name} ({model.dtype}, {model.device}); {prompt.tokens:,} prompt tokens, "
        f"{prompt.compressed_tokens:,} of them compressed ({prompt.scenario})"
    )
    if result.memory:
        print(memory_line(result.memory))
    if answer.strip() and not occurrences(prompt.pieces[: prompt.compressed_tokens], answer):
        print("note: the reference answer does not occur in the compressed prompt")


def print_generation(result: RunResult) -> None:
    """How each variant's own text compares with the full cache's and the reference answer."""
    scores = {
        key: label
        for key, label in SCORES.items()
        if any(FIGURES[key].read(variant) is not None for variant in result.variants)
    }
    if not scores and all(variant.agreement is None for variant in result.variants):
        return
    print(GENERATION_TITLE)
    print_table(
        ("variant", "agreement", "first difference", *scores.values()),
        [
            (
                variant.spec,
                share(variant.agreement),
                _first_difference(variant),
                *(share(FIGURES[key].read(variant)) for key in scores),
            )
            for variant in result.variants
        ],
    )


def _first_difference(variant: VariantResult) -> str:
    if variant.first_difference is not None:
        return f"token {variant.first_difference + 1:,}"
    return "-" if variant.agreement is None else "none"


def print_ladder(result: RunResult) -> None:
    """The rungs of an ablation ladder, if the variants form one."""
    rungs = ladder_of(result)
    if not rungs:
        return
    print(f"\nladder over {rungs[0].rung.spec} (first decoding step, {rungs[0].heads} heads)")
    print_table(
        ("rung", "head L1", "heads below base", "final L1", "KL"),
        [
            (
                each.rung.label,
                number(each.head_l1),
                share(each.better_heads),
                number(each.final_hidden_l1),
                number(each.kl),
            )
            for each in rungs
        ],
    )
