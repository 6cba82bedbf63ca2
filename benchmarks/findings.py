"""The findings' figures from the tables in docs/findings/: `make findings`.

With files of `ckv export NAME --data --json FILE` it writes the tables of those runs first.
"""

import argparse
import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import log2
from pathlib import Path

from benchmarks.setting import ROOT
from benchmarks.svg import Dot, Panel, Series, figure
from ckv_core.experiment.export import read_export
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.runs import l1_answers
from ckv_core.experiment.stats import (
    Difference,
    Interval,
    holm,
    mcnemar,
    mean_interval,
    paired,
    score_interval,
)
from ckv_core.experiment.study import SampleResult
from ckv_core.methods import METHODS
from ckv_core.records.run_request import FULL
from ui.looks.palette import look_of

TABLES = ROOT / "docs" / "findings"
FIGURES = ROOT / "docs" / "images"
BASE = "snapkv"
# What lowers perturbation: un-pooling, and the readings of CriticalKV. Spec -> name and shape.
READINGS = {
    "snapkv:pool=none": ("un-pooled SnapKV", "square"),
    "snapkv+critical": ("CriticalKV-SnapKV (paper)", "circle"),
    "snapkv+critical:stage2=pooled": ("CriticalKV-SnapKV (code)", "diamond"),
    "snapkv+critical_auto": ("CriticalKV-SnapKV (auto alpha)", "triangle"),
}
# Beside them in the first figure: it lowers perturbation as much by sharing the budget otherwise.
BESIDE = {"layer_defensivekv": ("LayerDefensiveKV", "down")}
OTHERS = {"adakv+critical": "CriticalKV-AdaKV (paper)"} | {
    each.name: each.label for each in METHODS
}
TASKS = {
    "para_single": "one word, wanted in other words",
    "niah_single_2": "a seven-digit number in prose",
}
BOTH = "both"
MODELS = {"SmolLM2": "SmolLM2-135M", "qwen": "Qwen2.5-Coder-0.5B"}
Line = dict[str, object]
Rows = Sequence[Mapping[str, str]]


def name_of(spec: str) -> str:
    """The name of a variant in figures."""
    return READINGS[spec][0] if spec in READINGS else OTHERS[spec]


# --- tables ---------------------------------------------------------------------------------


def lines_of(run: Reading) -> Iterator[Line]:
    """Each task and point of one run, beside SnapKV at the same budget; then both tasks together.

    A cut answer is none; what failed is left out.
    """
    tasks = {sample.id: str(sample.tags["task"]) for sample in run.samples}
    names = [*dict.fromkeys(tasks.values())]
    for task in (*names, BOTH) if len(names) > 1 else names:
        by_point: dict[tuple[str, str], dict[str, SampleResult]] = {}
        for each in run.results:
            if each.state == "done" and task in (tasks[each.sample], BOTH):
                by_point.setdefault((each.budget or "", each.variant), {})[each.sample] = each
        for (budget, variant), results in sorted(by_point.items()):
            first = {
                "run": run.study.name,
                "model": (run.facts.get("model_info") or {}).get("name", ""),
            }
            first |= {"scenario": run.study.scenario, "task": task}
            base = by_point.get((budget, BASE), {})
            yield first | {"budget": budget, "variant": variant} | _line(results, base)


def _line(results: Mapping[str, SampleResult], base: Mapping[str, SampleResult]) -> Line:
    found, stood = _answers(results), _answers(base)
    share = score_interval([*found.values()])
    line: Line = {"n": share.n, "answered": int(sum(found.values()))}
    line |= {"cut": sum(each.outcome == "cut" for each in results.values())}
    line |= {"low": share.low, "high": share.high}
    for name, key in (("head_l1", "head"), ("final_l1", "final"), ("kl", "kl")):
        known = [each.figures[key] for each in results.values() if key in each.figures]
        line[name] = mean_interval(known).mean if known else None
    is_pair = base and base is not results and all(each.budget for each in results.values())
    both = paired(found, stood, is_share=True, is_yes_no=True) if is_pair else None
    return line | (_pair(both, _moved(results, base)) if both else {})


def _answers(results: Mapping[str, SampleResult]) -> dict[str, float]:
    return {name: float(bool(each.score)) for name, each in results.items()}


def _moved(own: Mapping[str, SampleResult], base: Mapping[str, SampleResult]) -> Interval:
    """Log2 of the final L1 over the base's, of the same samples."""
    pairs = [(each.figures, base[name].figures) for name, each in own.items() if name in base]
    known = [(a.get("final"), b.get("final")) for a, b in pairs]
    return mean_interval([log2(a / b) for a, b in known if a and b])


def _pair(both: Difference, moved: Interval) -> Line:
    points = {"change": both.mean.mean, "change_low": both.mean.low, "change_high": both.mean.high}
    shares = {
        f"l1_change{end}": None if value is None else 2**value - 1
        for end, value in (("", moved.mean), ("_low", moved.low), ("_high", moved.high))
    }
    return {"gained": both.higher, "lost": both.lower} | points | shares | {"p": both.p}


def adjusted(lines: Iterable[Line]) -> list[Line]:
    """The lines with Holm's p over each family of pairs: the planned one, joined sets, others."""
    found = [dict(line) for line in lines]
    tested = [line for line in found if "p" in line]

    def family(line: Line) -> str:
        is_main = line["variant"] in READINGS and line["scenario"] == "regular"
        return "others" if not is_main else "joined" if line["task"] == BOTH else "readings"

    for name, group in groupby(sorted(tested, key=family), key=family):
        pairs = [*group]
        for line, p in zip(pairs, holm([float(str(each["p"])) for each in pairs]), strict=True):
            line |= {"family": name, "holm_p": p}
    return found


def correlations(run: Reading) -> Iterator[Line]:
    """Rank correlation of lower head L1 with a right answer, by task (`l1_answers`)."""
    tasks = {sample.id: str(sample.tags["task"]) for sample in run.samples}
    for task in dict.fromkeys(tasks.values()):
        # A cut answer is a wrong one here as in the pairs.
        results = [
            replace(each, score=each.score or 0.0, stopped="eos")
            for each in run.results
            if tasks[each.sample] == task and each.state == "done"
        ]
        if (mean := l1_answers(results)) is not None:
            line: Line = {
                "run": run.study.name,
                "model": (run.facts.get("model_info") or {}).get("name", ""),
            }
            line |= {"scenario": run.study.scenario, "task": task, "n": mean.n}
            yield line | {"correlation": mean.mean, "low": mean.low, "high": mean.high}


def earlier_pairs() -> list[Line]:
    """Pairs of the tables of before, with Holm's p over all: query-aware ones against their base.

    needles.csv and needles_2k.csv have counts alone: of these the pairs whose base finds all or
    none, so that the counts are the changes.
    """
    found = [
        _earlier(name, row, int(row["base_gained"]), int(row["base_lost"]))
        for name in ("answers.csv", "methods.csv")
        for row in read(name)
        if row["base_p"]
    ]
    for name in ("needles.csv", "needles_2k.csv"):
        rows = read(name)
        places = ("model", "task", "scenario", "budget")
        by_place = {(*map(row.get, places), row["variant"]): row for row in rows}
        for row in rows:
            base = by_place.get((*map(row.get, places), BASE))
            if base and row["variant"].startswith(BASE) and row is not base:
                n, own, other = int(row["n"]), int(row["answers"]), int(base["answers"])
                if other in (0, n):
                    found.append(_earlier(name, row, max(0, own - other), max(0, other - own)))
    adjusted_p = holm([float(str(line["p"])) for line in found])
    return [line | {"holm_p": p} for line, p in zip(found, adjusted_p, strict=True)]


def _earlier(name: str, row: Mapping[str, str], gained: int, lost: int) -> Line:
    where = {key: row.get(key, "SmolLM2-135M-Instruct") for key in ("model", "scenario", "task")}
    line: Line = {"table": name} | where | {"budget": row["budget"], "variant": row["variant"]}
    return line | {"n": int(row["n"]), "gained": gained, "lost": lost, "p": mcnemar(lost, gained)}


def write(path: Path, lines: Sequence[Line]) -> None:
    """All columns that any line has, four digits."""
    columns = [*dict.fromkeys(key for line in lines for key in line)]
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        for line in lines:
            values = (line.get(column) for column in columns)
            table.writerow(f"{each:.4g}" if isinstance(each, float) else each for each in values)


def read(name: str) -> Rows:
    """One table; none where it is not there."""
    path = TABLES / name
    return [*csv.DictReader(path.read_text("utf-8").splitlines())] if path.exists() else []


# --- figures --------------------------------------------------------------------------------


def pages() -> dict[Path, str]:
    """The files that the tables give: the figures, and the page of pairs."""
    runs = read("runs.csv")
    known = [row for row in runs if row["scenario"] == "regular"]
    before = [row for row in known if row["task"] != BOTH]
    after = [row for row in runs if row["scenario"] == "context-only" and row["task"] != BOTH]
    drawn = {
        "fact_1.svg": answers_by_l1(before),
        "fact_2.svg": answers("Answers when the question is known", before),
        "fact_3.svg": by_correlation(read("l1_answers.csv")),
        "fact_4.svg": parts([row for row in known if row["task"] == BOTH]),
        "fact_5.svg": answers("Answers when the question comes after", after),
    }
    figures = {FIGURES / name: text for name, text in drawn.items()}
    return figures | {TABLES / "pairs.md": pairs_page(runs)}


def pairs_page(rows: Rows) -> str:
    """Every pair with SnapKV as a page in Markdown."""
    heads = ("kept", "method", "answers", "SnapKV", "+a -b", "points", "final L1", "p", "Holm's p")
    parts = ["# All pairs with SnapKV\n", "Written by `make findings` from `runs.csv`."]
    groups = [
        (f"{_model(model)}, {_WHEN[scenario]}, {TASKS.get(task, 'both tasks joined')}", pairs)
        for model, of_model in _grouped(rows, "model")
        for scenario, of_scenario in _grouped(of_model, "scenario")
        for task, pairs in _grouped(of_scenario, "task")
    ]
    for title, some in groups:
        stood = {row["budget"]: row["answered"] for row in some if row["variant"] == BASE}
        parts += [f"\n## {title}\n", f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
        for row in some:
            if row["p"]:
                cells = (
                    row["budget"].replace("%", " %"),
                    name_of(row["variant"]),
                    f"{row['answered']} of {row['n']}",
                    stood[row["budget"]],
                    f"+{row['gained']} -{row['lost']}",
                    _with_ends(row, "change"),
                    f"{100 * float(row['l1_change']):+.0f} %",
                    f"{float(row['p']):.2g}",
                    f"{float(row['holm_p']):.2g}",
                )
                parts.append(f"| {' | '.join(cells)} |")
    return "\n".join(parts) + "\n"


def _with_ends(row: Mapping[str, str], key: str) -> str:
    mean, low, high = (100 * float(row[name]) for name in (key, f"{key}_low", f"{key}_high"))
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def answers_by_l1(rows: Rows) -> str:
    """Change of final L1 (x) and of answers (y) against SnapKV; a panel a model and task."""
    drawn = READINGS | BESIDE
    series = [
        Series(f"{name}, {budget}", look_of(spec).color, shape, is_open=budget == "20%")
        for spec, (name, shape) in drawn.items()
        for budget in ("20%", "40%")
    ]
    keys = [(spec, budget) for spec in drawn for budget in ("20%", "40%")]
    panels = [
        Panel(
            title=title,
            x=(-75, 25, 25),
            x_label="change of final L1 against SnapKV, %",
            y=(-40, 100, 20),
            y_label="change of answers, points",
            dots=[
                Dot(
                    keys.index((row["variant"], row["budget"])),
                    100 * float(row["l1_change"]),
                    *(100 * float(row[key]) for key in ("change", "change_low", "change_high")),
                )
                for row in some
                if (row["variant"], row["budget"]) in keys
            ],
        )
        for title, some in _panels(rows)
    ]
    return figure("Change of final L1 and of answers against SnapKV", series, panels)


def answers(title: str, rows: Rows) -> str:
    """Share of samples that are answered, with Wilson's intervals; a panel a model and task."""
    series = {"20%": 0, "40%": 1, "": 2}
    variants = [*dict.fromkeys(row["variant"] for row in rows)]
    order = [each for each in dict.fromkeys((FULL, BASE, *READINGS, *OTHERS)) if each in variants]
    panels = [
        Panel(
            title=name,
            x=(0, 100, 25),
            x_label=f"answered, % of {max(int(row['n']) for row in some)} samples",
            rows=[name_of(each) for each in order],
            zero=False,
            dots=[
                Dot(
                    series[row["budget"]],
                    100 * int(row["answered"]) / int(row["n"]),
                    order.index(row["variant"]) + {"": 0, "20%": -0.16, "40%": 0.16}[row["budget"]],
                    100 * float(row["low"]),
                    100 * float(row["high"]),
                )
                for row in some
            ],
        )
        for name, some in _panels(rows)
    ]
    full = Series("full cache", look_of(FULL).color, "diamond")
    return figure(title, [*_kept(), full], panels)


def by_correlation(rows: Rows) -> str:
    """Rank correlation of lower head L1 with a right answer, by model, task and scenario."""
    panels = [
        Panel(
            title=_model(model),
            x=(-1, 1, 0.5),
            x_label="rank correlation, -1 to 1",
            rows=[f"{_SHORT[row['task']]}, {_WHEN[row['scenario']]}" for row in some],
            dots=[
                Dot(0, float(row["correlation"]), at, float(row["low"]), float(row["high"]))
                for at, row in enumerate(some)
            ],
        )
        for model, some in _grouped(rows, "model")
    ]
    legend = [Series("mean over samples, 95 % interval", look_of(BASE).color, "circle")]
    return figure("Rank correlation of head L1 and answers", legend, panels)


_WHEN = {"regular": "question known", "context-only": "question after"}
_SHORT = {"para_single": "one word", "niah_single_2": "number"}


def parts(rows: Rows) -> str:
    """Change of final L1 against SnapKV by what a variant changes, both tasks; a panel a model."""
    budgets, order = ("20%", "40%"), [*READINGS]
    panels = [
        Panel(
            title=f"{_model(model)}: both tasks",
            x=(-75, 25, 25),
            x_label="change of final L1 against SnapKV, %",
            rows=[READINGS[each][0] for each in order],
            dots=[
                Dot(
                    budgets.index(row["budget"]),
                    100 * float(row["l1_change"]),
                    order.index(row["variant"]) + (-0.16, 0.16)[budgets.index(row["budget"])],
                    100 * float(row["l1_change_low"]),
                    100 * float(row["l1_change_high"]),
                )
                for row in some
                if row["variant"] in READINGS
            ],
        )
        for model, some in _grouped(rows, "model")
    ]
    return figure("Change of final L1 by variant", _kept(), panels)


def _kept() -> list[Series]:
    """The legend of both budgets."""
    blue = look_of(BASE).color
    return [
        Series("20 % kept", blue, "circle", is_open=True),
        Series("40 % kept", blue, "circle"),
    ]


def _panels(rows: Rows) -> list[tuple[str, Rows]]:
    return [
        (f"{_model(model)}: {TASKS[task]}", some)
        for model, of_model in _grouped(rows, "model")
        for task in TASKS
        if (some := [row for row in of_model if row["task"] == task])
    ]


def _grouped(rows: Rows, key: str) -> list[tuple[str, Rows]]:
    names = dict.fromkeys(row[key] for row in rows)
    return [(name, [row for row in rows if row[key] == name]) for name in names]


def _model(name: str) -> str:
    return next(label for part, label in MODELS.items() if part in name)


def main() -> None:
    """Write the tables of the files, where there are any, and all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="*", help="of `ckv export NAME --data --json`")
    files: Sequence[Path] = parser.parse_args().files
    if files:
        runs = [read_export(path.read_text("utf-8")) for path in files]
        write(TABLES / "runs.csv", adjusted(line for run in runs for line in lines_of(run)))
        write(TABLES / "l1_answers.csv", [line for run in runs for line in correlations(run)])
    write(TABLES / "earlier_pairs.csv", earlier_pairs())
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
