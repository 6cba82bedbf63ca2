"""Five methods at 20 % kept on RULER, beside the figures that their authors print.

The authors' figures are of all samples of RULER 4k with Llama-3.1-8B, the question unknown while
evicting. docs/how-to/repeat_the_paper.md says what differs here and why.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas
import yaml

from ckv_core.errors import CkvError
from ckv_core.experiment.data import numbered_lines, read_file
from ckv_core.experiment.tasks import TASKS
from ckv_core.records.run_request import DEFAULT_MODEL

AUTHORS = {
    "full": None,
    "snapkv": 39.0,
    "adakv": 46.0,
    "adakv+critical": 62.9,
    "defensivekv": 85.3,
    "layer_defensivekv": 91.4,
}
BUDGET = "20%"
NEW_TOKENS = 128  # RULER's largest limit
SHARE, SEED = 0.1, 42  # kvpress draws the same samples with these as fraction and seed
RULER_TASKS = ("niah", "vt", "cwe", "fwe")
OURS = "NOT RULER: this project's own tasks with RULER's settings, from a seed. "
NOTE = (
    "Mean score of 100 over n samples, 95 % interval (Wilson's). Authors: RULER 4k whole, "
    "Llama-3.1-8B. A cut answer is one that {} new tokens ended; without a limit of its own a "
    "sample that was cut before its answer has no score."
)


def main() -> int:
    options = _arguments()
    with TemporaryDirectory() as folder:
        try:
            study, words = _study(options, Path(folder))
        except CkvError as error:
            sys.exit(f"error: {error}")
        file = Path(folder, "paper.yaml")
        file.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
        command = [
            "-m",
            "cli",
            "run",
            str(file),
            "--yes",
            "--json",
            "-",
            "--device",
            options.device,
        ]
        ended = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, check=False)
    if not ended.stdout.startswith(b"{"):
        return ended.returncode
    found = json.loads(ended.stdout)
    model = found["study"]["model_info"]
    where = f"{options.model} in {model['dtype']} on {model['device']}"
    print(f"\n{words}{where}, {BUDGET} kept, {options.scenario}.\n")
    print("\n".join(_table(found["table"])))
    print(f"\n{NOTE.format(NEW_TOKENS)}")
    return ended.returncode


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=DEFAULT_MODEL, help="name, Hub id or folder")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", help="kvpress's RULER as JSON Lines or Parquet")
    parser.add_argument("--share", type=float, default=SHARE, help="of the file's samples")
    parser.add_argument("--length", type=int, default=4096, help="tokens, of our own tasks")
    parser.add_argument("--samples", type=int, default=50, help="of each of our own tasks")
    parser.add_argument("--scenario", default="context-only", help="regular: the question known")
    return parser.parse_args()


def _study(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], str]:
    """The study as its file has it, and what the samples are."""
    _, *methods = AUTHORS
    study = {
        "model": options.model,
        "scenario": options.scenario,
        "variants": methods,
        "budgets": [BUDGET],
        "max_new_tokens": NEW_TOKENS,
    }
    if not options.data:
        tasks = [
            name for name in TASKS if name.split("_")[0] in RULER_TASKS and name[-4:] != "grid"
        ]
        data = {"task": tasks, "length": options.length, "samples": options.samples}
        name = f"paper {Path(options.model).stem[:24]} ours {options.length} {options.scenario}"
        return study | {"name": name, "data": data}, f"{OURS}{options.length:,} tokens; "
    path = Path(options.data)
    lines = [text for _, text in numbered_lines(read_file(path)) if text.strip()]
    chosen = pandas.Series(lines).sample(frac=options.share, random_state=SEED)
    (folder / "paper.jsonl").write_text("\n".join(chosen), encoding="utf-8")
    name = f"paper {Path(options.model).stem[:24]} {path.stem[:24]} {options.share:g}"
    name += f" {options.scenario}"
    words = f"{path.name}: {len(chosen):,} of {len(lines):,} samples; "
    return study | {"name": name, "data": {"file": "paper.jsonl"}}, words


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of Markdown, a row per method in the authors' order."""
    head = ("method", "score", "95 %", "n", "cut", "failed", "authors", "here minus authors")
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] + ['---:'] * 7)} |"]
    by_variant = {row["variant"]: row for row in rows}
    for variant, theirs in AUTHORS.items():
        row = by_variant[variant]
        if row["score"] is None:
            cells = ["-", "-"]
        else:
            ends = (
                f"{100 * row['low']:.1f} to {100 * row['high']:.1f}"
                if row["low"] is not None
                else "-"
            )
            cells = [f"{100 * row['score']:.1f}", ends]
        cells += [str(row[name]) for name in ("n", "cut", "failed")]
        known = theirs is not None and row["score"] is not None
        cells += [f"{theirs:.1f}" if theirs else "-"]
        cells += [f"{100 * row['score'] - theirs:+.1f}" if known else "-"]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
