"""Result folders of kvpress's evaluation and leaderboard, in and out. No torch.

A folder is one press at one ratio: predictions.csv (all columns of the set but the context),
metrics.json and config.yaml. What is read is written again bit for bit: the config is kept as it
is, the rest is made again from samples and results.
"""

import ast
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ckv_core.base.checked import read
from ckv_core.errors import ConfigError
from ckv_core.experiment.data import published, read_file
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.scores import LONGBENCH, RULER, score
from ckv_core.experiment.scores import METRICS as SCORES
from ckv_core.experiment.study import MAX_CLASSES, MAX_SAMPLES, Sample, SampleResult
from ckv_core.experiment.study_file import load_yaml
from ckv_core.methods.parts.press import press_code
from ckv_core.records.external_selection import MAX_TEXT_CHARS
from ckv_core.records.run_request import (
    FULL,
    MAX_NAME,
    MAX_NEW_TOKENS,
    MAX_SWEEP_POINTS,
    Point,
    RunRequest,
)
from ckv_core.records.variants import VariantSpec

PREDICTIONS, METRICS, CONFIG = "predictions.csv", "metrics.json", "config.yaml"
KEY = "leaderboard"  # in the data of a study that was read from folders
NO_CONTEXT = "The folder of kvpress has no contexts."
# Name of a press in kvpress's evaluation -> our SPEC under preset=kvpress.
PRESSES = {
    "no_press": FULL,
    "adakv_snapkv": "adakv",
    "chunkkv": "chunkkv",
    "compactor": "compactor",
    "critical_adakv_snapkv": "adakv+critical",
    "critical_snapkv": "snapkv+critical",
    "cur": "curdkv",
    "expected_attention": "ada_expected_attention",
    "keydiff": "keydiff",
    "knorm": "knorm",
    "kvzip": "kvzip",
    "kvzip_plus": "kvzip:plus=on",
    "lagkv": "lagkv",
    "observed_attention": "observed_attention",
    "pyramidkv": "pyramidkv",
    "random": "random",
    "snapkv": "snapkv",
    "streaming_llm": "streaming_llm",
    "tova": "tova",
}
_BENCHMARKS = {"ruler": (RULER, "answer"), "longbench": (LONGBENCH, "answers")}
# As Python writes one; the last one may not end, or a search for the next would begin in it.
_TEXT = re.compile(r"'(?:[^'\\]++|\\.)*+'?|\"(?:[^\"\\]++|\\.)*+\"?", re.DOTALL)
_MAX_COLUMNS = 64
_COLUMNS = ("task", "question", "answer_prefix", "max_new_tokens")  # of a sample
_MADE = ("predicted_answer", "compression_ratio")


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One folder: its name, its config as text and values, its columns and rows."""

    name: str
    text: str
    config: Mapping[str, Any]
    columns: Sequence[str]
    rows: Sequence[Mapping[str, str]]

    @property
    def point(self) -> Point:
        press, ratio = str(self.config.get("press_name")), self.config.get("compression_ratio")
        if press not in PRESSES or not isinstance(ratio, int | float) or not 0 <= ratio < 1:
            raise ConfigError(
                f"{self.name} is of {press[:60]!r} at {str(ratio)[:20]}, which has no counterpart "
                f"here; known are {', '.join(PRESSES)} at a compression_ratio below 1."
            )
        if PRESSES[press] == FULL:
            return Point(FULL, None)
        return Point(_variant(press), f"{round(100 * (1 - ratio), 6):g}%")


def _variant(press: str) -> str:
    """The SPEC of a press, its preset written."""
    spec = PRESSES[press]
    return spec if spec == FULL else f"{spec}{',' if ':' in spec else ':'}preset=kvpress"


def read_leaderboard(folder: Path) -> Reading:
    """The study of one folder, or of a folder of such, whose texts are hostile.

    Raises:
        ConfigError: what is wrong with which folder.
    """
    found = [folder] if (folder / PREDICTIONS).is_file() else _folders(folder)
    leaves = [_read_leaf(each) for each in found]
    first = leaves[0]
    alike = ("dataset", "data_dir", "model", "query_aware", "fraction")
    for leaf in leaves:
        if any(leaf.config.get(key) != first.config.get(key) for key in alike):
            raise ConfigError(
                f"{leaf.name} and {first.name} differ in {', '.join(alike[:-1])} or fraction; "
                "import them one by one."
            )
    samples = _samples(leaves)
    study = _study(leaves)
    results = [each for leaf in leaves for each in _results(leaf, samples)]
    keys = {result.key for result in results}
    if len(keys) < len(results):
        raise ConfigError("Two of the folders are of the same press and ratio; leave one out.")
    return Reading(study, samples, results)


def write_leaderboard(reading: Reading, folder: Path) -> list[Path]:
    """Write a folder per point; returns them.

    Raises:
        ConfigError: a method, the samples or a result do not fit, or a folder is there already.
    """
    study, ordered = reading.study, sorted(reading.samples, key=lambda sample: sample.id)
    by_key = {result.key: result for result in reading.results}
    leaves = [*_stored_leaves(study)] or [*_own_leaves(study, ordered)]
    written = []
    for leaf in leaves:
        keys = [(sample.id, leaf.point.variant, leaf.point.budget) for sample in ordered]
        known = [by_key[key] for key in keys if key in by_key and by_key[key].state == "done"]
        if len(known) < len(ordered):
            missing = len(ordered) - len(known)
            raise ConfigError(f"{leaf.name}: {missing:,} results are missing; run the study again.")
        target = folder / leaf.name
        if target.exists():
            raise ConfigError(f"{str(target)!r} is there already; name an empty folder.")
        target.mkdir(parents=True)
        pairs = list(zip(ordered, known, strict=True))
        (target / PREDICTIONS).write_text(_predictions(leaf, pairs), "utf-8", newline="")
        (target / METRICS).write_text(_metrics(leaf, pairs, study.metric), "utf-8", newline="")
        (target / CONFIG).write_text(leaf.text, "utf-8", newline="")
        written.append(target)
    return written


# --- read ---------------------------------------------------------------------------------


def _folders(folder: Path) -> list[Path]:
    found = sorted(path.parent for path in folder.glob(f"*/{PREDICTIONS}"))
    if not found:
        raise ConfigError(f"Neither {str(folder)!r} nor a folder in it has a {PREDICTIONS}.")
    if len(found) > MAX_SWEEP_POINTS:
        raise ConfigError(f"{str(folder)!r} has over {MAX_SWEEP_POINTS} folders; take fewer.")
    return found


def _read_leaf(folder: Path) -> _Leaf:
    text = read_file(folder / CONFIG)
    config = _config_of(folder.name, text)
    csv.field_size_limit(MAX_TEXT_CHARS)
    needed = {*_COLUMNS, *_MADE, _BENCHMARKS[config["dataset"]][1]}
    try:
        reader = csv.DictReader(io.StringIO(read_file(folder / PREDICTIONS), newline=""))
        columns = list(reader.fieldnames or ())
        if not needed <= {*columns} or not len({*columns}) == len(columns) <= _MAX_COLUMNS:
            raise ConfigError(
                f"{folder.name}: {PREDICTIONS} needs the columns {', '.join(sorted(needed))}, each "
                f"once, and has at most {_MAX_COLUMNS}."
            )
        rows = list(islice(reader, MAX_SAMPLES + 1))
    except csv.Error as error:
        raise ConfigError(f"{folder.name}: {PREDICTIONS} is no CSV: {error}.") from None
    if not 0 < len(rows) <= MAX_SAMPLES or any(None in {*row, *row.values()} for row in rows):
        raise ConfigError(
            f"{folder.name}: {PREDICTIONS} has no row, over {MAX_SAMPLES:,}, or one with fewer "
            "cells than columns."
        )
    return _Leaf(folder.name, text, config, columns, rows)


def _config_of(name: str, text: str) -> dict[str, Any]:
    config = load_yaml(text)
    if not isinstance(config, dict) or str(config.get("dataset")) not in _BENCHMARKS:
        raise ConfigError(f"{name}: the dataset in {CONFIG} is none of {', '.join(_BENCHMARKS)}.")
    return config


def _samples(leaves: Sequence[_Leaf]) -> tuple[Sample, ...]:
    """The same samples in the same order are in every folder."""
    first, (_, answers) = leaves[0], _BENCHMARKS[leaves[0].config["dataset"]]
    of_sample = [name for name in first.columns if name not in _MADE]
    for leaf in leaves[1:]:
        if [[row.get(n) for n in of_sample] for row in leaf.rows] != [
            [row[n] for n in of_sample] for row in first.rows
        ]:
            raise ConfigError(f"{leaf.name} has other samples than {first.name}.")
    return tuple(_sample(at, row, of_sample, answers) for at, row in enumerate(first.rows, 1))


def _sample(at: int, row: Mapping[str, str], columns: Sequence[str], answers: str) -> Sample:
    own = published(row)
    known = {*_COLUMNS, answers, "all_classes"}
    tags = own.get("tags", {}) | {name: row[name] for name in columns if name not in known}
    limit = row["max_new_tokens"]
    if not limit.isdecimal() or not 0 < int(limit[:9]) <= MAX_NEW_TOKENS:
        raise ConfigError(f"Row {at}: max_new_tokens is {limit[:20]!r}.")
    values = {
        "id": f"{at:05}",
        "context": NO_CONTEXT,
        "question": row["question"],
        "answers": _texts(row[answers]),
        "metric": own.get("metric", ""),
        "tags": tags,
        "choices": _texts(row.get("all_classes", "")),
        "answer_prefix": row["answer_prefix"],
        "max_new_tokens": int(limit),
    }
    return read(Sample, values, f"row {at} of {PREDICTIONS}", metrics=[*SCORES])


def _texts(cell: str) -> list[str]:
    """The texts of an array of numpy as it prints itself; up to one more than a sample may have."""
    found = islice(_TEXT.finditer(cell), MAX_CLASSES + 1)
    try:
        return [ast.literal_eval(each[0]) for each in found]
    except (SyntaxError, ValueError):
        raise ConfigError(f"{cell[:40]!r} in {PREDICTIONS} is no array of texts.") from None


def _study(leaves: Sequence[_Leaf]) -> RunRequest:
    config = leaves[0].config
    points = [leaf.point for leaf in leaves if leaf.point.budget]
    if not points:
        raise ConfigError("There is no press among the folders; give one beside no_press.")
    name = " ".join(str(config[key]) for key in ("dataset", "data_dir", "model") if config.get(key))
    kept = [
        {"folder": leaf.name, "config": leaf.text, "columns": [*leaf.columns]} for leaf in leaves
    ]
    study = RunRequest(
        name=name[:MAX_NAME],
        model=str(config.get("model")),
        scenario="regular" if config.get("query_aware") else "context-only",
        data={"file": leaves[0].name, KEY: kept},
        variants=(FULL, *dict.fromkeys(point.variant for point in points)),
        budgets=tuple(dict.fromkeys(point.budget or "" for point in points)),
    )
    study.validate()
    return study


def _results(leaf: _Leaf, samples: Sequence[Sample]) -> Iterator[SampleResult]:
    for sample, row in zip(samples, leaf.rows, strict=True):
        text = row["predicted_answer"]
        yield SampleResult(
            sample=sample.id,
            variant=leaf.point.variant,
            budget=leaf.point.budget,
            state="done",
            score=score(text, sample, "string_match"),
            text=text,
        )


# --- write --------------------------------------------------------------------------------


def _predictions(leaf: _Leaf, pairs: Sequence[tuple[Sample, SampleResult]]) -> str:
    """The CSV as pandas writes it."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(leaf.columns)
    ratio = repr(float(leaf.config["compression_ratio"]))
    for sample, result in pairs:
        cells: dict[str, Any] = {
            **sample.tags,
            "question": sample.question,
            "answer_prefix": sample.answer_prefix or "",
            "max_new_tokens": sample.max_new_tokens or "",
            "all_classes": _array(sample.choices) if sample.choices else "",
            **dict.fromkeys(("answer", "answers"), _array(sample.answers)),
            "predicted_answer": result.text,
            "compression_ratio": ratio,
        }
        writer.writerow([cells.get(name, "") for name in leaf.columns])
    return text.getvalue()


def _array(texts: Sequence[str]) -> str:
    """Texts as the array prints itself in which pandas holds them."""
    return str(np.array(texts, dtype=object))


def _metrics(leaf: _Leaf, pairs: Sequence[tuple[Sample, SampleResult]], metric: str) -> str:
    """RULER's scores by task, or LongBench's one, in points of 100."""
    scores: dict[str, list[float]] = {}
    for sample, result in pairs:
        task = str(sample.tags.get("task", ""))
        scores.setdefault(task, []).append(score(result.text, sample, metric))
    means = {task: round(sum(own) / len(own) * 100, 2) for task, own in sorted(scores.items())}
    if leaf.config["dataset"] == "ruler":
        return json.dumps({task: {"string_match": mean} for task, mean in means.items()}, indent=4)
    every = [each for own in scores.values() for each in own]
    return json.dumps(round(100 * sum(every) / len(every), 2), indent=4)


def _stored_leaves(study: RunRequest) -> Iterator[_Leaf]:
    """The folders that the study was read from."""
    for each in study.data.get(KEY, ()):
        config = _config_of(each["folder"], each["config"])
        yield _Leaf(each["folder"], each["config"], config, each["columns"], ())


def _own_leaves(study: RunRequest, samples: Sequence[Sample]) -> Iterator[_Leaf]:
    """Folders named and filled as kvpress's evaluation would, of a study that ran here."""
    benchmarks = {str(sample.tags.get("benchmark", "")) for sample in samples}
    found = [name for name, (benchmark, _) in _BENCHMARKS.items() if {benchmark} == benchmarks]
    if not found:
        raise ConfigError("Only samples of RULER or of LongBench as published go to a leaderboard.")
    (dataset,) = found
    for point, spec in zip(study.points(), study.specs, strict=True):
        press = _press_name(spec)
        if point.budget and not point.budget.endswith("%"):
            raise ConfigError("Folders of kvpress have a ratio; take budgets in percent.")
        kept = float(point.budget.rstrip("%")) if point.budget else 100.0
        ratio = round(1 - kept / 100, 6)
        config = _config(study, dataset, press, ratio)
        parts = (dataset, config["data_dir"], study.model.replace("/", "--"), press, f"{ratio:.2f}")
        name = "__".join((*parts, *["query_aware"] * (study.scenario == "regular")))
        text = yaml.dump(config, default_flow_style=False, indent=2, sort_keys=False)
        answers = _BENCHMARKS[dataset][1]
        classes = ["all_classes"] * (dataset == "longbench")
        columns = ["task", "question", "answer_prefix", answers, *classes, "max_new_tokens", *_MADE]
        yield _Leaf(name, text, config, columns, ())


def _press_name(spec: VariantSpec) -> str:
    """The name in kvpress's evaluation of a variant that keeps what that press keeps."""
    own = spec.settings("budget", "preset")
    for press in PRESSES:
        if VariantSpec.parse(_variant(press)).settings("budget", "preset") == own:
            return press
    raise ConfigError(
        f"{spec.spec!r} is no press of kvpress's evaluation; take preset=kvpress and one of "
        f"{', '.join(PRESSES.values())}."
    )


def _config(study: RunRequest, dataset: str, press: str, ratio: float) -> dict[str, Any]:
    """The fields of kvpress's EvaluationConfig, in its order."""
    spec = VariantSpec.parse(_variant(press))
    code, own = "None", spec.method.press
    if own is not None:
        chain = own.chain(spec.params, critical=spec.critical)
        code = press_code(chain, f"compression_ratio={ratio}")
    return {
        "dataset": dataset,
        "data_dir": Path(str(study.data.get("file", ""))).stem,
        "model": study.model,
        "device": None,
        "press_name": press,
        "compression_ratio": ratio,
        "key_channel_compression_ratio": None,
        "fraction": 1.0,
        "max_new_tokens": None,
        "max_context_length": None,
        "query_aware": study.scenario == "regular",
        "needle_depth": None,
        "compression_interval": None,
        "target_size": None,
        "hidden_states_buffer_size": None,
        "output_dir": "./results",
        "log_level": "INFO",
        "model_kwargs": {},
        "press_init_command": code,
        "seed": 42,
        "fp8": False,
    }
