"""A study as a YAML file: read with every value checked, and written. No torch."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

import yaml  # type: ignore[import-untyped]

from ckv_core.errors import ConfigError
from ckv_core.request.compare_request import DEFAULT_MODEL, MAX_NEW_TOKENS, SCENARIOS, Scenario
from ckv_core.runtime.json_fields import JsonField
from ckv_core.studies.harness import LM_EVAL
from ckv_core.studies.records import DEFAULT_TOLERANCE, MAX_NAME, MAX_TOLERANCE, Study
from ckv_core.studies.scores import METRICS
from ckv_core.studies.tasks import TASKS

MAX_DEPTH = 8  # a study has three levels
MAX_FILE_CHARS = 100_000
MAX_PARTS = 10_000  # values and keys; a study names up to 5,000 runs
# YAML reads digits with colons as sums of powers of 60, too.
_LONG_NUMBER = re.compile(r"[-+]?[0-9][0-9a-fA-FxX_:.]{40}")
MAX_SAMPLES = 5_000
MAX_LENGTH = 1_000_000  # tokens
_WHOLE = "study file"
STUDY_KEYS = {
    "name",
    "model",
    "data",
    "scenario",
    "variants",
    "budgets",
    "max_new_tokens",
    "metric",
    "tolerance",
    "read_once",
    "earlier_tolerances",
    "earlier_variants",
}
_DATA_KEYS = {
    "file": {"file", "columns"},
    "task": {"task", "length", "samples", "seed"},
    "runs": {"runs"},
    LM_EVAL: {LM_EVAL, "samples", "metric", "context"},
}


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Plain values only; a key that comes twice is refused instead of read once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        values = dict(super().construct_mapping(node, deep))
        if len(values) < len(node.value):
            keys = Counter(self.construct_object(key, deep=True) for key, _ in node.value)
            ((twice, _),) = keys.most_common(1)
            raise ConfigError(f"The {_WHOLE} has {str(twice)[:80]!r} twice; remove one.")
        return values


def read_study(text: str, default_model: str = DEFAULT_MODEL) -> Study:
    """The study that a YAML text describes, which is hostile.

    Raises:
        ConfigError: what is wrong, and where.
    """
    return study_of(_load(text), default_model)


def study_of(values: object, default_model: str = DEFAULT_MODEL) -> Study:
    """The study that plain values of a file describe; `read_study` has the arguments."""
    top = JsonField(values, whole=_WHOLE)
    if not isinstance(values, dict):
        top.fail("key: value lines are expected")
    _refuse_unknown(values, STUDY_KEYS, "")
    tolerance = top["tolerance"].maybe(lambda at: at.number(0, MAX_TOLERANCE))
    study = Study(
        name=read_name(top["name"]),
        model=default_model if top["model"].absent else _word(top["model"], 500),
        data=_read_data(top["data"]),
        scenario=cast("Scenario", _one_of(top["scenario"], SCENARIOS, "regular")),
        variants=tuple(_word(each, 200) for each in top["variants"].items(64)),
        budgets=tuple(_word(each, 20) for each in top["budgets"].items(32)),
        max_new_tokens=top["max_new_tokens"].maybe(lambda at: at.integer(1, MAX_NEW_TOKENS)) or 32,
        metric=_one_of(top["metric"], METRICS, "string_match"),
        tolerance=DEFAULT_TOLERANCE if tolerance is None else tolerance,
        read_once=top["read_once"].maybe(JsonField.boolean) or False,
        earlier_tolerances=tuple(
            each.number(0, MAX_TOLERANCE) for each in _listed(top["earlier_tolerances"])
        ),
        earlier_variants=tuple(_word(each, 200) for each in _listed(top["earlier_variants"])),
    )
    study.validate()
    return study


def write_study(study: Study) -> str:
    """The YAML text that `read_study` reads back."""
    return str(yaml.safe_dump(study_values(study), sort_keys=False, allow_unicode=True))


def study_values(study: Study) -> dict[str, Any]:
    """The definition as plain JSON values, by the keys of the file."""
    rare = {
        "read_once": study.read_once,
        "earlier_tolerances": list(study.earlier_tolerances),
        "earlier_variants": list(study.earlier_variants),
    }
    return {
        "name": study.name,
        "model": study.model,
        "data": dict(study.data),
        "scenario": study.scenario,
        "variants": list(study.variants),
        "budgets": list(study.budgets),
        "max_new_tokens": study.max_new_tokens,
        "metric": study.metric,
        "tolerance": study.tolerance,
        **{key: value for key, value in rare.items() if value},
    }


def read_values(values: Mapping[str, Any]) -> Study:
    """What `study_values` gave; of a trusted place, such as our own database."""
    known = ("variants", "budgets", "earlier_tolerances", "earlier_variants")
    lists = {key: tuple(values[key]) for key in known if key in values}
    return Study(**{**values, **lists})


def read_name(field: JsonField) -> str:
    """A study's name: one line that can be typed.

    Raises:
        ConfigError: empty, too long or with control characters.
    """
    name = _word(field, MAX_NAME)
    if not name.isprintable():
        field.fail("a name without control characters is expected")
    return name


def _load(text: str) -> object:
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


def _read_data(field: JsonField) -> dict[str, Any]:
    if not isinstance(field.value, dict):
        field.fail("{file: NAME.jsonl} or {task: NAME, length: N, samples: N} is expected")
    kinds = [kind for kind in _DATA_KEYS if kind in field.value]
    if len(kinds) != 1:
        field.fail(f"one of {', '.join(_DATA_KEYS)} is expected")
    (kind,) = kinds
    _refuse_unknown(field.value, _DATA_KEYS[kind], "data.")
    if kind == "file":
        data: dict[str, Any] = {"file": _word(field["file"], 4_000)}
        if not field["columns"].absent:
            columns = field["columns"].members(16)
            data["columns"] = {key: _word(each, 200) for key, each in columns.items()}
        return data
    if kind == "runs":
        return {"runs": [_word(each, MAX_NAME) for each in field["runs"].items(MAX_SAMPLES)]}
    samples = field["samples"].integer(1, MAX_SAMPLES)
    if kind == LM_EVAL:
        named = [name for name in ("metric", "context") if not field[name].absent]
        return {
            LM_EVAL: _word(field[LM_EVAL], 200),
            "samples": samples,
            **{name: _word(field[name], 200) for name in named},
        }
    length = field["length"]
    lengths = length.items(16) if isinstance(length.value, list) else [length]
    found = [each.integer(64, MAX_LENGTH) for each in lengths]
    if not found:
        length.fail("a number of tokens is expected")
    return {
        "task": field["task"].one_of(*TASKS),
        "length": found if isinstance(length.value, list) else found[0],
        "samples": samples,
        "seed": field["seed"].maybe(lambda at: at.integer(0, 2**31)) or 0,
    }


def _refuse_unknown(values: Mapping[Any, Any], known: set[str], place: str) -> None:
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        raise ConfigError(
            f"The {_WHOLE} has the unknown key {(place + unknown[0])[:80]!r}; known are "
            f"{', '.join(sorted(known))}."
        )


def _one_of(field: JsonField, words: Iterable[str], default: str) -> str:
    return default if field.absent else field.one_of(*words)


def _listed(field: JsonField) -> list[JsonField]:
    return [] if field.absent else field.items(64)


def _word(field: JsonField, most: int) -> str:
    """A text, or a number that YAML read out of one; not empty."""
    text = field.text_or_number(most).strip()
    if not text:
        field.fail("text is expected")
    return text
