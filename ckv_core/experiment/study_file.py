"""A study as a YAML file: read with every value checked, and written. No torch."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import yaml

from ckv_core.base.checked import (
    By,
    Plain,
    chars,
    loose,
    many,
    read,
    require,
    whole_number,
    within,
    wrong,
)
from ckv_core.errors import ConfigError
from ckv_core.experiment.harness import LM_EVAL
from ckv_core.experiment.scores import METRICS
from ckv_core.experiment.study import MAX_SAMPLES
from ckv_core.experiment.tasks import TASKS, listed
from ckv_core.records.codec import record_json, revived
from ckv_core.records.run_request import DEFAULT_MODEL, MAX_SWEEP_POINTS, OF_ONE, Name, RunRequest

MAX_DEPTH = 8  # a study has three levels
MAX_FILE_CHARS = 100_000
MAX_PARTS = 10_000  # values and keys; a study names up to 5,000 runs
# YAML reads digits with colons as sums of powers of 60, too.
_LONG_NUMBER = re.compile(r"[-+]?[0-9][0-9a-fA-FxX_:.]{40}")
MAX_LENGTH = 1_000_000  # tokens
_WHOLE = "study file"
STUDY_KEYS = tuple(each.name for each in fields(RunRequest) if each.name not in OF_ONE)
# Where a file leaves them out; answers of tasks are short.
_DEFAULTS = {"max_new_tokens": 32}
Length = int | list[int]
Tasks = str | list[str]
Samples = Annotated[int, within(1, MAX_SAMPLES)]
Word = Annotated[str, loose(200, 1)]


def _read_length(value: Any, _: Plain) -> Length:
    """Tokens, or an array of up to 16 of such numbers."""
    if not isinstance(value, list):
        return whole_number(value, 64, MAX_LENGTH)
    require(1 <= len(value) <= 16, "at least one value and at most 16 values are expected")
    return [whole_number(each, 64, MAX_LENGTH, i) for i, each in enumerate(value)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """Samples from a folder of kvpress's results; see `leaderboard`."""

    folder: Annotated[str, chars(300, r"[^/\\.][^/\\]*")]  # becomes a name on a disk
    config: Annotated[str, chars(MAX_FILE_CHARS)]
    columns: Annotated[list[Word], many(64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    file: Annotated[str, loose(4_000, 1)]
    columns: Annotated[Mapping[str, Word], many(16)] | None = None
    leaderboard: Annotated[list[_Folder], many(MAX_SWEEP_POINTS)] | None = None


def _read_task(value: Any, _: Plain) -> Tasks:
    """The name of a task, or an array of different ones."""
    names = listed(value)
    require(1 <= len(names) <= len(TASKS), "at least one task is expected", got=value)
    require(len({*map(str, names)}) == len(names), "each task is expected once", got=value)
    for i, name in enumerate(names):
        at = (i,) if names is value else ()
        require(name in TASKS, f"one of {', '.join(TASKS)} is expected", *at, got=name)
    return value  # type: ignore[no-any-return]  # checked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    task: Annotated[Tasks, By(_read_task)]
    length: Annotated[Length, By(_read_length)]
    samples: Samples
    seed: Annotated[int, within(0, 2**31)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    runs: Annotated[list[Name], many(MAX_SAMPLES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Harness:
    lm_eval: Word
    samples: Samples
    metric: Word | None = None
    context: Word | None = None


_DATA: dict[str, type] = {"file": _File, "task": _Task, "runs": _Runs, LM_EVAL: _Harness}


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Plain values only; a key that comes twice is refused instead of read once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        values = dict(super().construct_mapping(node, deep))
        if len(values) < len(node.value):
            keys = Counter(self.construct_object(key, deep=True) for key, _ in node.value)
            ((twice, _),) = keys.most_common(1)
            raise ConfigError(f"The {_WHOLE} has {str(twice)[:80]!r} twice; remove one.")
        return values


def read_study(text: str, default_model: str = DEFAULT_MODEL) -> RunRequest:
    """The study that a YAML text describes, which is hostile.

    Raises:
        ConfigError: what is wrong, and where.
    """
    return study_of(load_yaml(text), default_model)


def study_of(values: object, default_model: str = DEFAULT_MODEL) -> RunRequest:
    """The study that plain values of a file describe; `read_study` has the arguments."""
    if not isinstance(values, dict):
        raise wrong(_WHOLE, (), "key: value lines are expected", values)
    given = _known(values, STUDY_KEYS, "")
    if "name" not in given:
        raise wrong(_WHOLE, ("name",), "a value is expected", None)
    given["data"] = _read_data(given.get("data"))
    study = read(RunRequest, {"model": default_model} | _DEFAULTS | given, _WHOLE)
    if study.metric not in METRICS:
        raise wrong(_WHOLE, ("metric",), f"one of {', '.join(METRICS)} is expected", study.metric)
    study.validate()
    return study


def write_study(study: RunRequest) -> str:
    """The YAML text that `read_study` reads back."""
    return str(yaml.safe_dump(study_values(study), sort_keys=False, allow_unicode=True))


def study_values(study: RunRequest) -> dict[str, Any]:
    """The definition as plain JSON values, by the keys of the file; what is empty is left out."""
    values, without = record_json(study), record_json(RunRequest())
    return {key: values[key] for key in STUDY_KEYS if values[key] or without[key]}


def read_values(values: Mapping[str, Any]) -> RunRequest:
    """What `study_values` gave; of a trusted place, such as our own database."""
    return revived(RunRequest, values)


def read_name(name: object, whole: str) -> str:
    """A study's name: one line that can be typed; else ConfigError."""
    return read(Name, name, whole)


def load_yaml(text: str) -> object:
    """Plain values of a hostile text; ConfigError where it is no YAML, or too much."""
    if len(text) > MAX_FILE_CHARS:
        raise ConfigError(
            f"The {_WHOLE} has {len(text):,} characters; the limit is {MAX_FILE_CHARS:,}."
        )
    try:
        _check_events(yaml.parse(text, _Loader))
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError(f"The {_WHOLE} is no YAML{place}: {problem}.") from None


def _check_events(events: Iterable[yaml.Event]) -> None:
    """Refuse what makes a few lines into gigabytes, or a parser that works at them for hours."""
    depth = 0
    for at, event in enumerate(events):
        if at > MAX_PARTS:
            raise ConfigError(f"The {_WHOLE} has over {MAX_PARTS:,} values.")
        if getattr(event, "tag", None) is not None:
            raise ConfigError(f"The {_WHOLE} uses a YAML tag ({event.tag[:80]}); remove it.")
        is_plain = isinstance(event, yaml.ScalarEvent) and event.style is None
        if is_plain and _LONG_NUMBER.match(event.value):
            raise ConfigError(f"The {_WHOLE} has a number that is too long.")
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"The {_WHOLE} uses a YAML alias (*name); write the value out.")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(f"The {_WHOLE} is nested too deeply.")


def _read_data(value: object) -> Plain:
    if not isinstance(value, dict):
        form = "{file: NAME.jsonl} or {task: NAME, length: N, samples: N} is expected"
        raise wrong(_WHOLE, ("data",), form, value)
    kinds = [kind for kind in _DATA if kind in value]
    if len(kinds) != 1:
        raise wrong(_WHOLE, ("data",), f"one of {', '.join(_DATA)} is expected", value)
    record = _DATA[kinds[0]]
    known = [each.name for each in fields(record)]
    found: Any = read(record, _known(value, known, "data."), _WHOLE, at=("data",))
    return {key: value for key, value in asdict(found).items() if value is not None}


def _known(values: Mapping[Any, Any], known: Collection[str], place: str) -> Plain:
    """The members that are not null; a key that is not known is refused."""
    unknown = sorted(str(key) for key in values if key not in known)
    if not place and (single := sorted(OF_ONE & {*unknown})):
        raise ConfigError(
            f"The {_WHOLE} has {single[0]!r}, which only a run of one text takes: remove it, and "
            "compare one of the samples by itself with it."
        )
    if unknown:
        raise ConfigError(
            f"The {_WHOLE} has the unknown key {(place + unknown[0])[:80]!r}; known are "
            f"{', '.join(sorted(known))}."
        )
    return {key: value for key, value in values.items() if value is not None}
