"""What the form of a new study holds, and its way to a study and back. Pure: no Gradio."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ckv_core.errors import CkvError, ConfigError, about
from ckv_core.request.compare_request import DEFAULT_MODEL
from ckv_core.studies.data import COLUMNS, LINE_BOUNDS, read_samples
from ckv_core.studies.records import DEFAULT_TOLERANCE, Sample, Study
from ckv_core.studies.spec import read_study, write_study
from storage.repository import is_slug
from ui.compare.form_values import read_list, read_text
from ui.compare.offers import variant_choices
from ui.tables.data_table import data_table, table_row, text_column

DEFAULT_METHODS = ("snapkv", "snapkv+critical:stage2=pooled", "adakv", "expected_attention")
MOST_RUNS = 100  # in an address
MOST_CHARS = 4_000_000
FIRST_CHARS = 2**16  # of the first line, for the names of its columns
PREVIEW_ROWS = 3
PREVIEW_CHARS = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyForm:
    """The form's values as the reader sees them, in the order of the controls.

    Attributes:
        source: `file`, whose text is in `data`, `task`, or `lm_eval`, a task of that package.
        columns: `ours=theirs`, with commas, where names in the file differ.
        lm_eval: the name of its task.
        length: tokens of a task's prompts; several with commas.
        samples: of a task, at each length.
        methods: SPECs ticked, without a budget.
        tolerance: points that a method may lose against the full cache.
    """

    name: str = ""
    source: str = "file"
    data: str = ""
    columns: str = ""
    task: str = "niah_multikey_1"
    lm_eval: str = ""
    length: str = "1024"
    samples: str = "50"
    seed: str = "0"
    scenario: str = "regular"
    model: str = DEFAULT_MODEL
    methods: tuple[str, ...] = DEFAULT_METHODS
    budgets: str = "10%, 20%, 50%"
    max_new_tokens: str = "32"
    metric: str = "string_match"
    tolerance: str = f"{DEFAULT_TOLERANCE:g}"

    @classmethod
    def from_controls(cls, values: Sequence[object]) -> "StudyForm":
        """Take the values of all controls, in the order of `STUDY_CONTROLS`; they may be anything.

        Raises:
            ConfigError: a value is not of the kind that its control gives.
        """
        given = dict(zip(STUDY_CONTROLS, values, strict=True))
        ticked = given.pop("methods")
        if not isinstance(ticked, (list, tuple)):
            raise ConfigError("Choose at least one method.")
        numbers = ("max_new_tokens", "tolerance", "samples", "seed")
        return cls(
            **{name: read_text(value) for name, value in given.items() if name not in numbers},
            **{name: _number_text(given[name]) for name in numbers},
            methods=tuple(spec for _, spec in variant_choices() if spec in ticked),
        )

    @property
    def file_name(self) -> str:
        """What the pasted text would be called: its ending says how it is read."""
        return "samples.jsonl" if self.data.lstrip()[:1] in ("{", "") else "samples.csv"

    @property
    def data_text(self) -> str:
        """Text of the data file; empty for a task."""
        return self.data if self.source == "file" else ""

    @property
    def is_exported(self) -> bool:
        """Whether the text is a study that was exported, and no samples."""
        return self.data_text.lstrip().startswith('{"schema":')

    def study(self) -> Study:
        """What to run, with every value checked.

        Raises:
            ConfigError: says what to change.
        """
        study = Study(
            name=self.name.strip(),
            data=self._data(),
            model=self.model.strip(),
            scenario=self.scenario,  # type: ignore[arg-type]  # read_study refuses other words
            variants=self.methods,
            budgets=read_list(self.budgets),
            max_new_tokens=_whole("New tokens", self.max_new_tokens),
            metric=self.metric,
            tolerance=_decimal("The tolerance", self.tolerance),
        )
        if not study.name:
            with about("name"):
                raise ConfigError("Give the study a name; the same name resumes the study.")
        return read_study(write_study(study))

    def _data(self) -> dict[str, Any]:
        if self.source == "lm_eval":
            return {"lm_eval": self.lm_eval, "samples": _whole("Samples", self.samples)}
        return self._file() if self.source == "file" else self._task()

    def _file(self) -> dict[str, Any]:
        if not self.data.strip():
            with about("data"):
                raise ConfigError("Paste the samples or open their file, one JSON object a line.")
        columns = {"columns": self.mapping()} if self.columns.strip() else {}
        return {"file": self.file_name} | columns

    def _task(self) -> dict[str, Any]:
        lengths = [_whole("The length", text) for text in read_list(self.length)]
        return {
            "task": self.task,
            "length": lengths[0] if len(lengths) == 1 else lengths,
            "samples": _whole("Samples", self.samples),
            "seed": _whole("The seed", self.seed),
        }

    def mapping(self) -> dict[str, str]:
        """Our column -> the file's.

        Raises:
            ConfigError: a part does not read `ours=theirs`.
        """
        columns = {}
        for part in read_list(self.columns):
            own, equals, theirs = (text.strip() for text in part.partition("="))
            if not (equals and theirs) or own not in COLUMNS:
                with about("columns"):
                    raise ConfigError(
                        f"{part[:60]!r} must read NAME=COLUMN with a NAME of {', '.join(COLUMNS)}, "
                        "for example answers=label."
                    )
            columns[own] = theirs
        return columns


def read_run_slugs(text: str) -> list[str]:
    """Names of runs in an address, each once.

    Raises:
        ConfigError: one cannot name a run, or there are too many.
    """
    slugs = list(dict.fromkeys(read_list(text)))
    if len(slugs) > MOST_RUNS or not all(map(is_slug, slugs)):
        raise ConfigError(f"Name up to {MOST_RUNS} runs; a study file takes more as data.runs.")
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
            f"{MOST_CHARS:,}. Choose fewer, or name them as data.runs in a study file."
        )
    return text


STUDY_CONTROLS: tuple[str, ...] = tuple(field.name for field in fields(StudyForm))


def preview(form: StudyForm) -> tuple[str, dict[str, Any] | None]:
    """How the pasted samples are read: a sentence, and a DataTable of the first ones.

    Raises:
        ConfigError: they cannot be read; says which column or line is wrong.
    """
    if form.source != "file" or not form.data.strip():
        return "", None
    if form.is_exported:
        return "An exported study: Run stores it with its results.", None
    theirs = file_columns(form.data, form.file_name)
    try:
        mapping = form.mapping()
        samples = read_samples(form.data, form.file_name, mapping or None)
    except CkvError as error:
        with about(error.field or "data"):
            raise ConfigError(f"{error} The file's columns: {_listed(theirs)}.") from None
    read = {own: mapping.get(own, own) for own in COLUMNS}
    told = ", ".join(f"{own} from {name}" for own, name in read.items() if name in theirs)
    unread = [name for name in theirs if name not in read.values()]
    rest = f" Not read: {_listed(unread)}." if unread else ""
    count = f"{len(samples):,} sample{'' if len(samples) == 1 else 's'}"
    shown = [
        {
            "id": _cut(sample.id),
            "context": _cut(sample.context),
            "question": _cut(sample.question),
            "answers": _cut(" | ".join(sample.answers)),
            "metric": _cut(sample.metric or form.metric),
        }
        for sample in samples[:PREVIEW_ROWS]
    ]
    table = data_table(
        "The first samples as they are read",
        [text_column(name, name) for name in shown[0]],
        map(table_row, shown),
        file="samples-preview.csv",
    )
    return f"{count}: {told}.{rest}", table


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


def _cut(text: str) -> dict[str, str]:
    line = " ".join(text[: 2 * PREVIEW_CHARS].split())
    return {"text": line if len(line) <= PREVIEW_CHARS else f"{line[:PREVIEW_CHARS]}…"}


def _listed(names: Sequence[str]) -> str:
    shown = [name[:40] for name in names[:12]]
    return ", ".join(shown) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "none"


def _number_text(value: object) -> str:
    """Of a number field, which gives a number, or of a text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:g}"
    return read_text(value)


_FIELDS = {
    "New tokens": "max_new_tokens",
    "Samples": "samples",
    "The length": "length",
    "The seed": "seed",
    "The tolerance": "tolerance",
}


def _whole(what: str, text: str) -> int:
    if not text.strip().isdecimal() or len(text.strip()) > 9:
        with about(_FIELDS[what]):
            raise ConfigError(f"{what} must be a whole number; got {text.strip()[:40]!r}.")
    return int(text)


def _decimal(what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        with about(_FIELDS[what]):
            raise ConfigError(f"{what} must be a number; got {text.strip()[:40]!r}.") from None
