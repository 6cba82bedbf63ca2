"""Many samples in the Compare form: the study that its fields describe. No Gradio."""

import csv
import io
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from math import ceil
from typing import Any

from ckv_core.base.memory_line import human_bytes
from ckv_core.errors import CkvError, ConfigError, about
from ckv_core.experiment.data import COLUMNS, LINE_BOUNDS, UNMAPPED, known_columns, read_samples
from ckv_core.experiment.plan import Setting, bytes_together
from ckv_core.experiment.runs import source
from ckv_core.experiment.sentences import can_confirm, clipped, counted
from ckv_core.experiment.study import Sample
from ckv_core.experiment.study_file import study_of as checked_study
from ckv_core.experiment.study_file import study_values
from ckv_core.experiment.tasks import listed
from ckv_core.models.catalog import planned_shape
from ckv_core.records.byte_budget import ITEM_BYTES
from ckv_core.records.grid import Cost, duration
from ckv_core.records.run_request import FULL, RunRequest
from ui.compare.form_values import FormValues, file_name, mapping

MOST_CHARS = 4_000_000
FIRST_CHARS = 2**16  # of the first line, for the names of its columns
PREVIEW_ROWS = 3
PREVIEW_CHARS = 60
MOST_COLUMNS = 100
NO_NAME = "samples"  # of an estimate
COLUMN_HELP = {
    "id": "different in each row",
    "context": "the text that is compressed",
    "question": "the question about it",
    "answers": "each of them counts as right",
    "metric": "if it needs its own",
    "source": "the same for texts that belong together",
}


def study_of(form: FormValues) -> RunRequest:
    """The run of many samples that the form describes, with every value checked.

    Raises:
        ConfigError: says what to change.
    """
    if not form.name.strip():
        with about("name"):
            raise ConfigError(
                "Give the run a name; with the name of a stored run, that run is resumed."
            )
    return checked_study(study_values(form.request()))


def data_text(form: FormValues) -> str:
    """Text of the data file; empty where the samples come from a task."""
    return form.data if form.source == "pasted" else ""


def is_exported(form: FormValues) -> bool:
    """Whether the text is a run that was exported, and no samples."""
    return data_text(form).lstrip().startswith('{"schema":')


def fingerprint(form: FormValues) -> str:
    """What two forms with the same values share."""
    return str(zlib.crc32(repr(form).encode("utf-8", "replace")))


def cost_sentence(study: RunRequest, cost: Cost) -> str:
    """What many samples take, before they start."""
    memory = _memory(study, cost.longest)
    return (
        f"Takes about {duration(cost.seconds)} on two CPU cores"
        f"{f', and {human_bytes(memory)} of memory' if memory else ''}. {cost.samples:,} samples, "
        f"{cost.points // max(1, cost.samples)} results each; {cost.tokens:,} prompt tokens, at "
        f"most {cost.longest:,} in one prompt."
    )


def _memory(study: RunRequest, longest: int) -> int:
    """Bytes of the longest sample with the weights; 0 where the model's sizes are not known."""
    dtype = study.dtype if study.dtype in ITEM_BYTES else "float32"
    setting = Setting(memory=1, prompt=max(1, longest), output=study.max_new_tokens, dtype=dtype)
    with suppress(CkvError):
        shape = planned_shape(study.model, with_paths=False)
        return bytes_together(shape, setting, study.specs)
    return 0


def plan_sentence(form: FormValues) -> str:
    """What this many samples can show at this tolerance; empty while none are known.

    Raises:
        ConfigError: a sample or a setting is wrong.
    """
    count = count_sources(form)
    if not count:
        return ""
    study = study_of(replace(form, name=form.name.strip() or NO_NAME))
    methods = {point.variant for point in study.points()} - {FULL}
    return can_confirm(count, len(methods), study.tolerance / 100) if methods else ""


def count_sources(form: FormValues) -> int:
    """How many independent samples the form has; 0 while that is not known."""
    if form.source == "runs" and not form.runs.strip():
        return 0
    if form.source == "pasted":
        if is_exported(form) or not form.data.strip():
            return 0
        with about("data"):
            samples = read_samples(form.data, file_name(form), mapping(form) or None)
        return len({*map(source, samples)})
    data = form.request().data
    if form.source == "runs":
        return len(data["runs"])
    return int(data["samples"]) * _parts(data)


def sample_map(form: FormValues) -> dict[str, Any] | None:
    """Value of the SampleMap: our columns, those of the file, and the first samples as read.

    None where no samples were pasted.

    Raises:
        ConfigError: a part of the columns does not read `ours=theirs`.
    """

    def cells(own: str) -> list[str]:
        return [clipped(readers[own](each), PREVIEW_CHARS) for each in samples[:PREVIEW_ROWS]]

    theirs = file_columns(form.data, file_name(form)) if form.source == "pasted" else []
    if not theirs or is_exported(form):
        return None
    samples: Sequence[Sample] = ()
    columns = mapping(form)
    with suppress(CkvError):  # the line beside Run says what is wrong
        samples = read_samples(form.data, file_name(form), columns or None)
    read = {own: own for own in COLUMNS} | dict(columns or known_columns(theirs))
    readers: dict[str, Callable[[Sample], str]] = {
        "id": lambda sample: sample.id,
        "context": lambda sample: sample.context,
        "question": lambda sample: sample.question,
        "answers": lambda sample: " | ".join(sample.answers),
        "metric": lambda sample: sample.metric or form.metric,
        "source": lambda sample: sample.source,
    }
    unread = [name for name in theirs if name not in {*read.values(), *UNMAPPED}]
    return {
        "text": f"{counted(len(samples), 'sample')}." if samples else "",
        "unread": f"Not read: {_listed(unread)}." if unread else "",
        "theirs": theirs[:MOST_COLUMNS],
        "rows": [
            {
                "own": own,
                "help": COLUMN_HELP[own],
                "from": name if name in theirs else "",
                "values": cells(own),
            }
            for own, name in read.items()
        ],
    }


def form_of_study(study: RunRequest, samples: Sequence[Sample], add: int) -> FormValues:
    """The form that runs a study again, with more samples of its task, or its samples as a file.

    Raises:
        ConfigError: the samples are too long for a form.
    """
    one = RunRequest(
        context="-",
        scenario=study.scenario,
        model=study.model,
        variants=study.variants,
        budgets=study.budgets,
        alphas=study.alphas,
        defaults=study.defaults,
        max_new_tokens=study.max_new_tokens,
    )
    form = replace(
        FormValues.from_request(one),
        mode="many",
        context="",
        name=study.name,
        metric=study.metric,
        tolerance=f"{study.tolerance:g}",
        baseline=study.baseline,
    )
    data = study.data
    if "task" in data:
        return replace(
            form,
            source="task",
            task=tuple(listed(data["task"])),
            length=", ".join(map(str, listed(data["length"]))),
            samples=str(data["samples"] + ceil(add / _parts(data))),
            sample_seed=str(data["seed"]),
        )
    if "lm_eval" in data and not data.keys() - {"lm_eval", "samples"}:
        more = str(data["samples"] + add)
        return replace(form, source="lm_eval", lm_eval=str(data["lm_eval"]), samples=more)
    return replace(form, source="pasted", data=sample_lines(samples))


def _parts(data: Mapping[str, Any]) -> int:
    """How many times a task's number of samples is made: of each task at each length."""
    return len(listed(data.get("task"))) * len(listed(data.get("length")))


def sample_lines(samples: Sequence[Sample]) -> str:
    """The samples as the lines of a file that `read_samples` reads.

    Raises:
        ConfigError: they are too long for a form.
    """
    names = [each.name for each in fields(Sample)]
    lines = [{name: getattr(each, name) for name in names} for each in samples]
    text = "\n".join(
        json.dumps(
            {key: value for key, value in line.items() if value or value == ""}, ensure_ascii=False
        )
        for line in lines
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


def _listed(names: Sequence[str]) -> str:
    shown = [name[:40] for name in names[:12]]
    return ", ".join(shown) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "none"
