"""Tables in the terminal, and the parts of what is printed of a run."""

import io
from collections.abc import Callable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ckv_core.base.memory_line import memory_line
from ckv_core.base.percent import percent
from ckv_core.base.terminal import plain, say, terminal_width
from ckv_core.experiment.ablation import AblationStepResult, ablation_of
from ckv_core.experiment.points import Points
from ckv_core.experiment.points_table import points_table
from ckv_core.experiment.table import Column, Item, Table
from ckv_core.experiment.verdict import verdict_of
from ckv_core.records.events import RunResult
from ckv_core.records.passages import occurrences

GAP = "  "  # between columns


def print_table(table: Table[Item]) -> None:
    """The columns that fit beside one another, then a line for each further one, and the note.

    A SPEC comes first and names a row, where the table has one.
    """
    columns = {column.key: column for column in table.columns}
    spec = columns.pop("spec", None)
    first = spec or columns[next(iter(columns))]
    for key in ("variant", "budget") if spec else (first.key,):
        columns.pop(key, None)

    def text(column: Column[Item], item: Item) -> str:
        return cell.text or "-" if (cell := column.cell(item)) else "-"

    shown = [each for each in columns.values() if not each.is_extra]
    rows = [[text(each, item) for each in (first, *shown)] for item in table.items]
    print_rows([each.head for each in (first, *shown)], rows, table.caption)
    more = [
        (each.head, text(first, item), cell.text)
        for each in columns.values()
        if each.is_extra
        for item in table.items
        if (cell := each.cell(item))
    ]
    print_rows(("Metric", first.label, "Value"), more, "Further metrics")
    if table.items and table.note:
        say(f"\n{table.note}")


def print_rows(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
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
    table = RichTable(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0))
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
    print_rows(list(columns), [[read(item) for read in columns.values()] for item in items], title)


def number(value: float | None) -> str:
    """Four digits that mean something, no -0; a dash for what is not known."""
    return "-" if value is None else f"{value:z.4g}"


def share(value: float | None) -> str:
    return "-" if value is None else percent(value, 1)


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
    """Print the verdict, which stands before any metric."""
    if verdict := verdict_of(result):
        say("\n" + "\n".join(verdict.lines))


def print_points(points: Points) -> None:
    """The table of points over several samples, and what limits it."""
    print_table(points_table(points))
    for note in points.notes:
        say(f"note: {note}")


def print_ablation(result: RunResult) -> None:
    steps = ablation_of(result)
    columns: dict[str, Callable[[AblationStepResult], str]] = {
        "Step": lambda each: each.step.label,
        "Head L1": lambda each: number(each.head_l1),
        "Heads below base": lambda each: share(each.better_heads),
        "Final L1": lambda each: number(each.final_hidden_l1),
        "KL": lambda each: number(each.kl),
    }
    if steps:
        of = f"Ablation over {steps[0].step.spec} (first decoding step, {steps[0].heads} heads)"
        print_columns(steps, columns, of)
