"""Plain tables, and what `compare`, `sweep` and `analyse` print alike."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ckv_core.analysis.ablation import ablation_of
from ckv_core.analysis.rounding import floor_sentence
from ckv_core.analysis.sweep import shown_figures
from ckv_core.analysis.verdict import verdict_of
from ckv_core.experiment.stats import Interval
from ckv_core.results.events import RunResult
from ckv_core.results.figures import FIGURES
from ckv_core.results.outcomes import kl_where_it_fails, outcome_word, tally
from ckv_core.results.passages import occurrences
from ckv_core.results.records import VariantResult
from ckv_core.runtime.memory_line import memory_line
from ckv_core.runtime.terminal import plain, say

Item = TypeVar("Item")
GENERATION_TITLE = (
    "\nown generation; agreement: share of the full cache's tokens before the first difference"
)
# Figures of a generated text against the reference answer.
SCORES = {
    key: figure.label[0].lower() + figure.label[1:]
    for key, figure in FIGURES.items()
    if figure.has_own_full
}


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell; the first to the left, figures to the right."""
    table = [[plain(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    for row in table:
        first, *figures = row
        cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:], strict=True)]
        say("  ".join([f"{first:<{widths[0]}}", *cells]).rstrip())


def print_columns(items: Sequence[Item], columns: Mapping[str, Callable[[Item], str]]) -> None:
    """The table with a row per item, of what each column reads from it, under the column's name."""
    print_table(list(columns), [[read(item) for read in columns.values()] for item in items])


def number(value: float | None) -> str:
    """Four digits that mean something, no -0; a dash for what is not known."""
    return "-" if value is None else f"{value:z.4g}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:z.1%}"


def interval(value: Interval | None, *, percent: bool = False) -> str:
    """`12.3 [11.8, 12.9]`; without the brackets of one prompt and where there is no interval."""
    if value is None:
        return "-"
    shown = share if percent else number
    if value.low is None or value.n == 1:
        return shown(value.mean)
    return f"{shown(value.mean)} [{shown(value.low)}, {shown(value.high)}]"


def print_head(result: RunResult, answer: str = "") -> None:
    """Model, prompt and memory in a line each; and whether a reference answer can be found."""
    if result.model is None or result.prompt is None:
        return
    prompt, model = result.prompt, result.model
    say(
        f"{model.name} ({model.dtype}, {model.device}); {prompt.tokens:,} prompt tokens, "
        f"{prompt.compressed_tokens:,} of them compressed ({prompt.scenario})"
    )
    if result.memory:
        say(memory_line(result.memory))
    if answer.strip() and not occurrences(prompt.pieces[: prompt.compressed_tokens], answer):
        say("note: the reference answer does not occur in the compressed prompt")


def print_verdict(result: RunResult) -> None:
    """What came out, before any figure."""
    verdict = verdict_of(result)
    if verdict is None:
        return
    say(f"\n{verdict.headline}")
    groups = (group.sentence for group in verdict.groups)
    for sentence in filter(None, (verdict.regimes, *groups, *verdict.findings)):
        say(f"  {sentence}")
    for caution in verdict.cautions:
        say(f"  note: {caution}")


def print_floor(result: RunResult) -> None:
    if floor := floor_sentence(result):
        say(f"\n{floor}")


def print_generation(result: RunResult) -> None:
    """How each variant's own text compares with the full cache's and the reference answer."""
    known = {figure.key for figure in shown_figures(result)}
    scores = {key: label for key, label in SCORES.items() if key in known - {"answer"}}
    if not tally(result.variants).by_answer and all(
        variant.agreement is None for variant in result.variants
    ):
        return
    say(GENERATION_TITLE)
    columns: dict[str, Callable[[VariantResult], str]] = {
        "variant": lambda variant: variant.spec,
        "outcome": answer_word,
        "agreement": lambda variant: share(variant.agreement),
        "first difference": _first_difference,
        "KL there": lambda variant: number(kl_where_it_fails(variant)),
        **{label: _share_of(key) for key, label in scores.items()},
        "bytes": _share_of("share"),
    }
    print_columns(result.variants, columns)


def answer_word(variant: VariantResult) -> str:
    return outcome_word(variant) or "-"


def _share_of(key: str) -> Callable[[VariantResult], str]:
    return lambda variant: share(FIGURES[key].read(variant))


def _first_difference(variant: VariantResult) -> str:
    if variant.first_difference is not None:
        return f"token {variant.first_difference + 1:,}"
    return "-" if variant.agreement is None else "none"


def print_ablation(result: RunResult) -> None:
    steps = ablation_of(result)
    if not steps:
        return
    say(f"\nablation over {steps[0].step.spec} (first decoding step, {steps[0].heads} heads)")
    print_columns(
        steps,
        {
            "step": lambda each: each.step.label,
            "head L1": lambda each: number(each.head_l1),
            "heads below base": lambda each: share(each.better_heads),
            "final L1": lambda each: number(each.final_hidden_l1),
            "KL": lambda each: number(each.kl),
        },
    )
