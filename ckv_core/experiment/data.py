"""Samples from files: JSON Lines, CSV with its columns named, published sets as they are.

Of LongBench its own files and kvpress's, of RULER kvpress's (JSON Lines, or Parquet where pyarrow
is installed). No torch.
"""

import csv
import io
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ckv_core.base.checked import read
from ckv_core.base.json_text import JsonBounds, NoJsonError
from ckv_core.base.read_apart import SMALL_BYTES, Data, read_apart
from ckv_core.errors import CkvError, ConfigError, first_line
from ckv_core.experiment.constraints import constraints
from ckv_core.experiment.scores import LONGBENCH, METRICS, RULER
from ckv_core.experiment.study import (
    MAX_ANSWERS,
    MAX_CLASSES,
    MAX_SAMPLES,
    MAX_TAGS,
    Sample,
)
from ckv_core.records.external_selection import MAX_TEXT_CHARS
from ckv_core.records.run_request import MAX_PROTECTED, RunRequest

MAX_FILE_BYTES = 256 * 2**20
# In all lines of JSON: as many as samples with all that their fields may hold, and their commas.
MAX_VALUES = MAX_SAMPLES * 2 * (MAX_ANSWERS + MAX_CLASSES + 2 * (MAX_TAGS + MAX_PROTECTED) + 16)
LINE_BOUNDS = JsonBounds(containers=2**12, values=2**17)
COLUMNS = ("id", "context", "question", "answers", "metric", "source")
_KVPRESS_OWN = ("answer_prefix", "max_new_tokens")  # of kvpress's sets, and of any
# Read under their own names alone.
UNMAPPED = ("tags", "choices", "evidence", "protect", *_KVPRESS_OWN)
ANSWER_SEPARATOR = "|"  # between the answers in a cell of a CSV file
# LongBench's published files: the metric of each data set is part of its definition.
_LONGBENCH = {"input", "context", "answers", "all_classes", "dataset"}
_LONGBENCH_COLUMNS = {"id": "_id", "question": "input"}
_LONGBENCH_METRICS = {
    **dict.fromkeys(("gov_report", "qmsum", "multi_news", "samsum"), "rouge_l_union"),
    "trec": "classification",
    "passage_retrieval_en": "retrieval",
    "passage_count": "count",
    **dict.fromkeys(("lcc", "repobench-p"), "code_similarity"),
}
# Columns of kvpress's sets beside context and question.
_KVPRESS = {"context", "question", "answer_prefix", "task", "max_new_tokens"}
_RULER_TASKS = {"niah", "vt", "cwe", "fwe", "qa"}  # up to the first underscore
_CHINESE = {"multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh"}


def read_file(path: Path) -> str:
    """The text of a data file; of a Parquet file its rows as lines of JSON.

    Raises:
        ConfigError: it cannot be read, is too big or not UTF-8.
    """
    file = f"The data file {str(path)!r}"
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigError(f"{file} has {size:,} bytes; the limit is {MAX_FILE_BYTES:,}.")
        if path.suffix == ".parquet":
            return _parquet_lines(path, file)
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        message = f"{file} is not UTF-8 text (byte {error.start:,}); convert it first."
        raise ConfigError(message) from None


def _parquet_lines(path: Path, file: str) -> str:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ConfigError(
            f"{file} is Parquet: install pyarrow with pip, or save it as JSON Lines with pandas' "
            "to_json(orient='records', lines=True)."
        ) from None
    try:
        found = parquet.ParquetFile(path)
        groups = [found.metadata.row_group(at) for at in range(found.num_row_groups)]
        size = sum(group.total_byte_size for group in groups)
        if found.metadata.num_rows > MAX_SAMPLES or size > MAX_FILE_BYTES:
            raise ConfigError(
                f"{file} has {found.metadata.num_rows:,} samples of {size:,} bytes; the limits "
                f"are {MAX_SAMPLES:,} and {MAX_FILE_BYTES:,}."
            )
        return "\n".join(json.dumps(row) for row in found.read().to_pylist())
    except ArrowException as error:
        raise ConfigError(f"{file} is no Parquet: {first_line(error)}") from None


def read_samples(
    text: str, name: str = "samples.jsonl", columns: Mapping[str, str] | None = None
) -> tuple[Sample, ...]:
    """The samples of a data file.

    Args:
        text: hostile.
        name: of the file; one that ends in .csv is read as CSV.
        columns: of ours (COLUMNS) -> of the file, where they differ. Files as LongBench
            publishes them need none.

    Raises:
        ConfigError: the first thing that is wrong, with its line.
    """
    for column in columns or {}:
        if column not in COLUMNS:
            raise ConfigError(
                f"data.columns has {column!r}; it maps {', '.join(COLUMNS)} to the file's names."
            )
    own = partial(_samples, name=name, columns=dict(columns or {}))
    # Nothing bounds the cells of a row before it is read; lines of JSON are counted.
    if not _is_csv(name) or len(text) <= SMALL_BYTES:
        return tuple(own(text))
    with read_apart(own, text) as samples:
        return tuple(samples)


def _is_csv(name: str) -> bool:
    return name.lower().endswith(".csv")


def _samples(text: Data, name: str, columns: Mapping[str, str]) -> Iterator[Sample]:
    rows = _csv_rows(str(text), columns) if _is_csv(name) else _json_rows(str(text))
    lines: dict[str, int] = {}
    for line, values in rows:
        try:
            sample = _sample(values, columns, f"line {line}")
        except CkvError as error:
            raise ConfigError(f"{name}, line {line}: {error}") from None
        if sample.id in lines:
            raise ConfigError(
                f"{name}: lines {lines[sample.id]} and {line} have the same id "
                f"{sample.id[:80]!r}; give each sample its own."
            )
        lines[sample.id] = line
        if len(lines) > MAX_SAMPLES:
            raise ConfigError(f"{name} has over {MAX_SAMPLES:,} samples; take fewer.")
        yield sample
    if not lines:
        raise ConfigError(
            f"{name} has no samples; write a JSON object a line, or CSV with a line of names."
        )


def samples_of_runs(runs: Mapping[str, RunRequest]) -> tuple[Sample, ...]:
    """The texts of stored runs as samples; runs over one context are of one source.

    Args:
        runs: their requests by slug, which becomes the sample's id.

    Raises:
        ConfigError: a run has no reference answer, or the same texts as another one.
    """
    first: dict[str, str] = {}
    slugs: dict[tuple[str, str], str] = {}
    samples = []
    for slug, run in runs.items():
        if not run.answer.strip():
            raise ConfigError(
                f"Run {slug} has no reference answer to score by; open it in Compare, fill in "
                "Expected answer and run it again, or leave it out."
            )
        twin = slugs.setdefault((run.context, run.question), slug)
        if twin != slug:
            raise ConfigError(f"Runs {twin} and {slug} ask the same; leave one of them out.")
        source = first.setdefault(run.context, slug)
        samples.append(
            Sample(
                id=slug,
                context=run.context,
                question=run.question,
                answers=(run.answer.strip(),),
                answer_prefix=run.answer_prefix,
                source=source,
            )
        )
    return tuple(samples)


def known_columns(names: Collection[str]) -> Mapping[str, str]:
    """Our column -> the file's, where they differ, of a published file."""
    if {*names} >= _KVPRESS:
        return {"answers": "answers" if "answers" in names else "answer"} | (
            {"id": "_id"} if "_id" in names else {}
        )
    return _LONGBENCH_COLUMNS if {*names} >= _LONGBENCH else {}


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines from 1, one by one; only a line feed ends a line, as a text may hold U+2028."""
    for line, match in enumerate(re.finditer("^.*$", text, re.MULTILINE), start=1):
        yield line, match[0]


def _json_rows(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    left = MAX_VALUES
    for line, content in numbered_lines(text):
        if not content.strip():
            continue
        try:
            left -= LINE_BOUNDS.check(content.encode("utf-8", "surrogatepass"))
            values = LINE_BOUNDS.read(content)
        except NoJsonError as error:
            raise ConfigError(f"Line {line} is no JSON object: {error}.") from None
        except ConfigError as error:
            raise ConfigError(f"Line {line}: {error}") from None
        if left < 0:
            raise ConfigError(f"Line {line}: the lines hold over {MAX_VALUES:,} values.")
        if not isinstance(values, dict):
            raise ConfigError(f"Line {line} is no JSON object with context, question and answers.")
        yield line, values


def _csv_rows(text: str, columns: Mapping[str, str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The columns that are read, whatever others there are; a cell that is missing is None."""
    csv.field_size_limit(MAX_TEXT_CHARS)
    answers = columns.get("answers", "answers")
    read = {columns.get(name, name) for name in COLUMNS} | _LONGBENCH | _KVPRESS
    read |= {"_id", "choices", "answer"}
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [(name, at) for at, name in enumerate(next(reader, [])) if name in read]
        if len(dict(header)) < len(header):
            raise ConfigError("The first line names a column twice; rename one.")
        for cells in filter(None, reader):
            row: dict[str, Any] = {
                name: cells[at] if at < len(cells) else None for name, at in header
            }
            row[answers] = (row.get(answers) or "").split(ANSWER_SEPARATOR, MAX_ANSWERS)
            yield reader.line_num, row
    except csv.Error as error:
        raise ConfigError(f"Line {reader.line_num} is no CSV: {error}.") from None


def _sample(values: Mapping[str, Any], columns: Mapping[str, str], place: str) -> Sample:
    facts: Mapping[str, Any] = {}
    if not columns and (columns := known_columns(values)):
        facts = published(values)
    given = {name: values.get(columns.get(name, name)) for name in COLUMNS}
    given |= {name: values.get(name) for name in UNMAPPED}
    given["tags"] = given["tags"] if isinstance(given["tags"], dict) else None
    given = {name: value for name, value in {**given, **facts}.items() if value is not None}
    answers = given.get("answers", [])
    answers = answers if isinstance(answers, list) else [answers]
    given["answers"] = [each for each in answers if each not in (None, "")]
    if not given["answers"]:
        raise ConfigError("answers is empty; give at least one reference answer.")
    if not str(given.get("id", "")).strip():
        given["id"] = place
    sample = read(Sample, {"question": "", "context": "", **given}, "sample", metrics=[*METRICS])
    if sample.metric == constraints.__name__:
        constraints("", sample.answers)  # one that cannot be read is refused here
    stripped = filter(None, map(str.strip, sample.answers))
    return replace(sample, answers=tuple(stripped))


def published(values: Mapping[str, Any]) -> dict[str, Any]:
    """Metric, classes and tags of a sample as a benchmark defines them."""
    if "dataset" not in values:
        task = str(values["task"])
        kind = task.split("_", maxsplit=1)[0]
        if kind not in _RULER_TASKS:
            return {"tags": {"task": task}}
        metric = "string_match_part" if kind == "qa" else "string_match"
        return {"metric": metric, "tags": {"benchmark": RULER, "task": task}}
    dataset = str(values["dataset"]).removesuffix("_e")
    if dataset in _CHINESE:
        raise ConfigError(
            f"the data set {dataset} needs Chinese word splitting, which is not built in; "
            "take an English one."
        )
    return {
        "metric": _LONGBENCH_METRICS.get(dataset, "token_f1"),
        "choices": values.get("all_classes"),
        "tags": {"benchmark": LONGBENCH, "task": dataset},
    }
