"""Tables of the answers that benchmarks/needles.py wrote: shares, exact tests of pairs, figures.

Prints one table per file and budget, and writes all of them as one CSV file.
"""

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.tables import table
from ckv_core.experiment.stats import Interval, mcnemar, mean_interval, score_interval

UNPOOLED = "snapkv:pool=none"
FIGURES = ("agreement", "kl", "head_l1", "heads_closer", "final_l1")
Row = Mapping[str, str]
Group = dict[str, Row]  # by text


def read(path: Path) -> dict[tuple[str, str], Group]:
    """Rows by (budget, variant) and text; the full cache's budget is empty."""
    found: dict[tuple[str, str], Group] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault((row["budget"], row["variant"]), {})[row["text"]] = row
    return found


def is_cut(row: Row) -> bool:
    """Whether the limit of new tokens came before the answer; what would follow is not known."""
    return row["stopped"] == "length" and row["found"] == "0"


def pair(own: Group, other: Group) -> tuple[int, int, float]:
    """Texts that gained and lost the answer, and p; of cut texts as if the answer never came."""
    both = [(int(own[text]["found"]), int(other[text]["found"])) for text in own if text in other]
    gained, lost = sum(a > b for a, b in both), sum(a < b for a, b in both)
    return gained, lost, mcnemar(lost, gained)


def lines(groups: Mapping[tuple[str, str], Group]) -> Iterator[dict[str, object]]:
    """One per budget and variant."""
    for (budget, variant), rows in groups.items():
        first = next(iter(rows.values()))
        found = score_interval([float(row["found"]) for row in rows.values()])
        line: dict[str, object] = {
            **{key: first[key] for key in ("model", "scenario", "task")},
            "budget": budget,
            "variant": variant,
            "n": len(rows),
            "found": sum(int(row["found"]) for row in rows.values()),
            "found_low": found.low,
            "found_high": found.high,
            "cut": sum(map(is_cut, rows.values())),
        }
        for name, other in _others(variant):
            if (budget, other) in groups and other != variant:
                gained, lost, p = pair(rows, groups[budget, other])
                line |= {f"{name}_gained": gained, f"{name}_lost": lost, f"{name}_p": p}
        for key in FIGURES:
            values = [float(row[key]) for row in rows.values() if row[key]]
            if values:
                is_share = key in ("agreement", "heads_closer")
                mean = (score_interval if is_share else mean_interval)(values)
                line |= {key: mean.mean, f"{key}_low": mean.low, f"{key}_high": mean.high}
        yield line


def _others(variant: str) -> Iterator[tuple[str, str]]:
    """What a variant is set against: its base, and SnapKV without pooling."""
    if "+critical" in variant:
        yield "base", variant.partition("+")[0]
    elif ":" in variant:
        yield "base", variant.partition(":")[0]
    if variant not in ("full", "streaming_llm", "snapkv", UNPOOLED):
        yield "unpooled", UNPOOLED


def cells(line: Mapping[str, object]) -> tuple[str, ...]:
    """A row of the printed table."""
    against = [
        f"+{line[f'{name}_gained']} -{line[f'{name}_lost']}, p = {line[f'{name}_p']:.2g}"
        if f"{name}_p" in line
        else "-"
        for name in ("base", "unpooled")
    ]
    share = Interval(0, float(str(line["found_low"])), float(str(line["found_high"])), 0)
    found = f"{line['found']} of {line['n']} ({share.low:.0%} to {share.high:.0%})"
    figures = [f"{line[key]:.3g}" if key in line else "-" for key in FIGURES]
    return (str(line["variant"]), found, str(line["cut"]), *against, *figures)


def main() -> None:
    """Read the files, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="from benchmarks/needles.py")
    parser.add_argument("--csv", type=Path, help="file for all rows")
    options = parser.parse_args()
    written: list[dict[str, object]] = []
    for path in options.files:
        found = list(lines(read(path)))
        written += found
        for budget in dict.fromkeys(str(line["budget"]) for line in found):
            some = [line for line in found if line["budget"] == budget]
            first = some[0]
            table(
                f"{first['model']}, {first['task']}, {first['scenario']}, budget {budget or 'all'}",
                ("variant", "found", "cut", "minus base", "minus un-pooled SnapKV", *FIGURES),
                [cells(line) for line in some],
            )
    if options.csv:
        write(options.csv, written)


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """All rows under all their columns; numbers of four digits."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})


if __name__ == "__main__":
    main()
