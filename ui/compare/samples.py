"""Many samples in the Compare form: the study that its fields describe. No Gradio."""

import csv
import io
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from ckv_core.errors import CkvError, ConfigError, about
from ckv_core.experiment.data import COLUMNS, LINE_BOUNDS, read_samples
from ckv_core.experiment.study import Sample
from ckv_core.experiment.study_file import study_of as checked_study
from ckv_core.experiment.study_file import study_values
from ckv_core.experiment.study_runner import Cost
from ckv_core.experiment.table import Table, text_column
from ckv_core.records.run_request import RunRequest
from storage.repository import is_slug
from ui.compare.form_values import FormValues, file_name, mapping, read_list
from ui.results.progress import duration

MOST_RUNS = 100  # in an address
MOST_CHARS = 4_000_000
FIRST_CHARS = 2**16  # of the first line, for the names of its columns
PREVIEW_ROWS = 3
PREVIEW_CHARS = 90


def study_of(form: FormValues) -> RunRequest:
    """The run of many samples that the form describes, with every value checked.

    Raises:
        ConfigError: says what to change.
    """
    if not form.name.strip():
        with about("name"):
            raise ConfigError("Give the run a name; a name that exists resumes its run.")
    return checked_study(study_values(form.request()))


def data_text(form: FormValues) -> str:
    """Text of the data file; empty where the samples come from a task."""
    return form.data if form.source == "file" else ""


def is_exported(form: FormValues) -> bool:
    """Whether the text is a run that was exported, and no samples."""
    return data_text(form).lstrip().startswith('{"schema":')


def fingerprint(form: FormValues) -> str:
    """What two forms with the same values share."""
    return str(zlib.crc32(repr(form).encode("utf-8", "replace")))


def cost_sentence(cost: Cost) -> str:
    """What many samples take, before they start."""
    return (
        f"{cost.samples:,} samples x {cost.points // max(1, cost.samples)} points, about "
        f"{cost.tokens:,} prompt tokens (the longest prompt {cost.longest:,}): about "
        f"{duration(cost.seconds)}, estimated from the default model's times on two CPU cores."
    )


def describe_samples(form: FormValues) -> tuple[str, dict[str, Any] | None]:
    """What would run, or how pasted samples are read: a sentence, and a DataTable of the first.

    Raises:
        ConfigError: a sample cannot be read (it names the column or line), or a setting is wrong.
    """
    if form.source == "file" and not form.data.strip():
        return "", None
    if is_exported(form):
        return "An exported run: Run stores it with its results.", None
    if form.source == "file":
        return preview(form)
    if not form.name.strip():
        return "", None
    count = len(study_of(form).points())
    return f"{count} points a sample: the full cache and each method at each budget.", None


def preview(form: FormValues) -> tuple[str, dict[str, Any]]:
    """How the pasted samples are read, and the first ones."""
    theirs = file_columns(form.data, file_name(form))
    try:
        columns = mapping(form)
        samples = read_samples(form.data, file_name(form), columns or None)
    except CkvError as error:
        with about(error.field or "data"):
            raise ConfigError(f"{error} The file's columns: {_listed(theirs)}.") from None
    read = {own: columns.get(own, own) for own in COLUMNS}
    sources = ", ".join(f"{own} from {name}" for own, name in read.items() if name in theirs)
    unread = [name for name in theirs if name not in read.values()]
    rest = f" Not read: {_listed(unread)}." if unread else ""
    count = f"{len(samples):,} sample{'' if len(samples) == 1 else 's'}"
    readers: dict[str, Callable[[Sample], str]] = {
        "id": lambda sample: _cut(sample.id),
        "context": lambda sample: _cut(sample.context),
        "question": lambda sample: _cut(sample.question),
        "answers": lambda sample: _cut(" | ".join(sample.answers)),
        "metric": lambda sample: _cut(sample.metric or form.metric),
    }
    table = Table(
        caption="The first samples as they are read",
        columns=[text_column(name, name, read) for name, read in readers.items()],
        items=samples[:PREVIEW_ROWS],
        file="samples-preview.csv",
    )
    return f"{count}: {sources}.{rest}", table.value()


def read_run_slugs(text: str) -> list[str]:
    """Names of runs in an address, each once.

    Raises:
        ConfigError: one cannot name a run, or there are too many.
    """
    slugs = list(dict.fromkeys(read_list(text)))
    if len(slugs) > MOST_RUNS or not all(map(is_slug, slugs)):
        raise ConfigError(f"Name up to {MOST_RUNS} runs; a YAML file takes more as data.runs.")
    return slugs


def sample_lines(samples: Sequence[Sample]) -> str:
    """The samples as the lines of a file that `read_samples` reads.

    Raises:
        ConfigError: they are too long for a form.
    """
    names = ("id", "context", "question", "answers", "source")
    text = "\n".join(
        json.dumps({name: getattr(each, name) for name in names}, ensure_ascii=False)
        for each in samples
    )
    if len(text) > MOST_CHARS:
        raise ConfigError(
            f"The texts of these runs have {len(text):,} characters, and the form takes "
            f"{MOST_CHARS:,}. Choose fewer, or name them as data.runs in a YAML file."
        )
    return text


def file_columns(text: str, name: str) -> list[str]:
    """Names of the columns in the first row; empty where it cannot be read."""
    first = text.lstrip()[:FIRST_CHARS].partition("\n")[0]
    try:
        if name.endswith(".csv"):
            return next(csv.reader(io.StringIO(first)), [])
        values = LINE_BOUNDS.read(first)
    except (ConfigError, csv.Error):
        return []
    return list(values) if isinstance(values, dict) else []


def _cut(text: str) -> str:
    line = " ".join(text[: 2 * PREVIEW_CHARS].split())
    return line if len(line) <= PREVIEW_CHARS else f"{line[:PREVIEW_CHARS]}…"


def _listed(names: Sequence[str]) -> str:
    shown = [name[:40] for name in names[:12]]
    return ", ".join(shown) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "none"
