"""Tables in the terminal, and the parts of what is printed of a run."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ckv_core.base.memory_line import memory_line
from ckv_core.base.terminal import plain, say, terminal_width
from ckv_core.experiment.ablation import ablation_of
from ckv_core.experiment.points import Points
from ckv_core.experiment.points_table import NOTE, columns_of
from ckv_core.experiment.sweep import shown_metrics
from ckv_core.experiment.verdict import verdict_of
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import METRICS
from ckv_core.records.outcomes import kl_where_it_fails, outcome_word, tally
from ckv_core.records.passages import occurrences
from ckv_core.records.records import VariantResult

Item = TypeVar("Item")
GAP = "  "  # between columns
GENERATION_TITLE = (
    "own generation; agreement: share of the full cache's tokens before the first difference"
)
# Figures of a generated text against the reference answer.
SCORES = {
    key: metric.label[0].lower() + metric.label[1:]
    for key, metric in METRICS.items()
    if metric.has_own_full
}


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A title and a table; nothing without rows. The first column is to the left, others right.

    A terminal that is narrower than the table gets it in parts, each with the first column.
    """
    if not rows:
        return
    if title:
        say(f"\n{title}")
    columns = [[plain(cell) for cell in column] for column in zip(head, *rows, strict=True)]
    widths = [max(map(cell_len, column)) + len(GAP) for column in columns]
    parts: list[list[int]] = [[]]
    for at in range(1, len(columns)):
        if parts[-1] and sum(widths[i] for i in (0, *parts[-1], at)) > terminal_width() + len(GAP):
            parts.append([])
        parts[-1].append(at)
    for part in parts:
        _print_part([columns[at] for at in (0, *part)])


def _print_part(columns: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0))
    for at, (head, *_) in enumerate(columns):
        table.add_column(Text(head), justify="right" if at else "left", overflow="fold")
    for row in list(zip(*columns, strict=True))[1:]:
        table.add_row(*map(Text, row))
    shown = io.StringIO()
    Console(file=shown, width=terminal_width(), color_system=None).print(table)
    say("\n".join(line.rstrip() for line in shown.getvalue().splitlines()))


def print_columns(
    items: Sequence[Item], columns: Mapping[str, Callable[[Item], str]], title: str = ""
) -> None:
    """The table with a row per item, of what each column reads from it, under the column's name."""
    print_table(list(columns), [[read(item) for read in columns.values()] for item in items], title)


def number(value: float | None) -> str:
    """Four digits that mean something, no -0; a dash for what is not known."""
    return "-" if value is None else f"{value:z.4g}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:z.1%}"


def indented(text: str) -> str:
    """A generated text below the line that says whose it is."""
    return "   " + text.strip().replace("\n", "\n   ")


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
    """What came out, before any metric."""
    if verdict := verdict_of(result):
        say("\n" + "\n".join(verdict.lines))


def print_points(points: Points) -> None:
    """The columns that fit beside one another, then a line for each further metric of a row."""
    columns = [each for each in columns_of(points) if each.key not in ("variant", "spec", "budget")]
    shown = [each for each in columns if not each.is_extra]
    rows = [
        (row.spec, *(cell.text if (cell := each.read(row)) else "-" for each in shown))
        for row in points.rows
    ]
    title = NOTE if points.n > 1 else "every method and budget"
    print_table(("variant", *(each.label for each in shown)), rows, title)
    more = [
        (each.label, row.spec, cell.text)
        for each in columns
        if each.is_extra
        for row in points.rows
        if (cell := each.read(row))
    ]
    print_table(("metric", "variant", "value"), more, "further metrics")
    for note in points.notes:
        say(f"note: {note}")


def print_generation(result: RunResult) -> None:
    """How each variant's own text compares with the full cache's and the reference answer."""
    known = {metric.key for metric in shown_metrics(result)}
    compared = tally(result.variants).by_answer or any(
        variant.agreement is not None for variant in result.variants
    )
    columns: dict[str, Callable[[VariantResult], str]] = {
        "variant": lambda variant: variant.spec,
        "outcome": answer_word,
        "agreement": _share_of("agreement"),
        "first difference": _first_difference,
        "KL there": lambda variant: number(kl_where_it_fails(variant)),
        **{SCORES[key]: _share_of(key) for key in SCORES if key in known - {"answer"}},
        "bytes": _share_of("share"),
    }
    print_columns(result.variants if compared else (), columns, GENERATION_TITLE)


def answer_word(variant: VariantResult) -> str:
    return outcome_word(variant) or "-"


def _share_of(key: str) -> Callable[[VariantResult], str]:
    return lambda variant: share(METRICS[key].read(variant))


def _first_difference(variant: VariantResult) -> str:
    if variant.first_difference is not None:
        return f"token {variant.first_difference + 1:,}"
    return "-" if variant.agreement is None else "none"


def print_ablation(result: RunResult) -> None:
    steps = ablation_of(result)
    print_columns(
        steps,
        {
            "step": lambda each: each.step.label,
            "head L1": lambda each: number(each.head_l1),
            "heads below base": lambda each: share(each.better_heads),
            "final L1": lambda each: number(each.final_hidden_l1),
            "KL": lambda each: number(each.kl),
        },
        f"ablation over {steps[0].step.spec} (first decoding step, {steps[0].heads} heads)"
        if steps
        else "",
    )
