"""A study with its results as plain JSON values, as docs/how-to/your_data.md has them. No torch."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, cast

from ckv_core.base.checked import check_schema, many, read, wrong
from ckv_core.base.json_text import JsonBounds, NoJsonError
from ckv_core.base.read_apart import SMALL_BYTES, Data, read_apart
from ckv_core.errors import ConfigError
from ckv_core.experiment.harness import LM_EVAL
from ckv_core.experiment.points import Row, with_bases
from ckv_core.experiment.points_table import differences_json
from ckv_core.experiment.reading import Decision, Reading
from ckv_core.experiment.runs import l1_answers, point_of
from ckv_core.experiment.scores import METRICS
from ckv_core.experiment.stats import CONFIDENCE
from ckv_core.experiment.study import MAX_SAMPLES, Sample, SampleResult
from ckv_core.experiment.study_file import STUDY_KEYS, study_of, study_values
from ckv_core.experiment.sweep import Saving, savings
from ckv_core.records.codec import record_json
from ckv_core.records.records import ModelInfo, Versions
from ckv_core.records.run_request import MAX_SWEEP_POINTS

SCHEMA = 1
_WHOLE = "file of a study"
_RESULT = ("variant", "budget", "score", "text", "state", "outcome", "reason")
MAX_CHARS = 512 * 2**20
BOUNDS = JsonBounds(containers=2**20, values=2**23)


def export(reading: Reading, *, with_data: bool = False) -> dict[str, Any]:
    """Everything that a study says, and what it says it from.

    `with_data`: everything that `read_export` needs, texts and all, as `data`.
    """
    points, moved = reading.points, l1_answers(reading.results)
    data = {
        "samples": [record_json(sample) for sample in reading.samples],
        "results": [record_json(result) for result in reading.results],
    }
    return {
        "schema": SCHEMA,
        "study": study_values(reading.study)
        | dict(reading.facts)
        | {"samples": len(data["samples"])},
        "samples": [
            {"id": result.sample} | {name: getattr(result, name) for name in _RESULT}
            for result in reading.results
        ],
        "table": [_row(row) for row in points.rows],
        "decision": decision_values(reading.decision)
        | {
            "points": [_named(row) | _costs(row) for row in points.rows],
            "pairs": [
                _named(pair.row)
                | {"other": _named(pair.other)}
                | differences_json(pair).get("score", {})
                for pair in points.pairs
                if "score" in pair.differences
            ],
            "savings": [
                _saving(each)
                for curve, base in with_bases(points.curves)
                for each in savings(curve, base, "score")
            ],
            "l1_answers": None if moved is None else asdict(moved),
        },
    } | ({"data": data} if with_data else {})


def read_export(text: str) -> Reading:
    """Read a file that `export` wrote with its data; the text may be hostile. It has no slug.

    Raises:
        ConfigError: the first thing that is wrong, and where.
    """
    if len(text) > MAX_CHARS:
        raise ConfigError(f"The file has {len(text):,} characters; the limit is {MAX_CHARS:,}.")
    if len(text) <= SMALL_BYTES:
        return _exported(_parts(text))
    with read_apart(_parts, text) as parts:
        return _exported(parts)


def _exported(parts: Iterator[Reading | Sample | SampleResult]) -> Reading:
    head = cast("Reading", next(parts))
    rest = [*parts]
    return replace(
        head,
        samples=tuple(part for part in rest if isinstance(part, Sample)),
        results=tuple(part for part in rest if isinstance(part, SampleResult)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Data:
    samples: Annotated[tuple[Sample, ...], many(MAX_SAMPLES)]
    results: Annotated[tuple[SampleResult, ...], many(MAX_SAMPLES * MAX_SWEEP_POINTS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    model_info: ModelInfo | None = None
    environment: Versions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    study: dict[str, Any]
    data: dict[str, Any] | None = None


def _parts(text: Data) -> Iterator[Reading | Sample | SampleResult]:
    """The study without samples and results, then those one by one."""
    try:
        root = BOUNDS.read(text)
    except NoJsonError as error:
        raise ConfigError(
            f"The file is no JSON ({error}); take one of `ckv export --data`."
        ) from None
    check_schema(root, _WHOLE, SCHEMA)
    file = read(_File, root, _WHOLE)
    if file.data is None:
        missing = "samples and results are expected, so export it with its data"
        raise wrong(_WHOLE, ("data",), missing, None)
    study = study_of({key: value for key, value in file.study.items() if key in STUDY_KEYS})
    facts = read(_Facts, file.study, _WHOLE, at=("study",))
    data = read(_Data, file.data, _WHOLE, at=("data",), metrics=[*METRICS, LM_EVAL])
    ids = {sample.id for sample in data.samples}
    if len(ids) < len(data.samples):
        raise wrong(_WHOLE, ("data", "samples"), "each id is expected once", data.samples)
    found = {result.key for result in data.results}
    wanted = {(name, point.variant, point.budget) for name in ids for point in study.points()}
    if len(found) < len(data.results) or not found <= wanted:
        once = "one result at most of each sample and point is expected"
        raise wrong(_WHOLE, ("data", "results"), once, len(data.results))
    yield Reading(study, (), (), facts=record_json(facts))
    yield from data.samples
    yield from data.results


def decision_values(decision: Decision) -> dict[str, Any]:
    found = decision.recommended
    return {
        "sentence": decision.sentence,
        "recommended": None
        if found is None
        else {"variant": found.variant, "budget": found.budget},
        "tolerance": decision.tolerance,
        "n": decision.n,
        "confidence": CONFIDENCE,
        "methods": [asdict(method) for method in decision.methods],
        "cautions": list(decision.notes),
    }


def _named(row: Row) -> dict[str, Any]:
    return asdict(point_of(row))


def _lost(row: Row) -> dict[str, Any]:
    return {word: row.outcomes.get(word, 0) for word in ("cut", "failed")}


def _row(row: Row) -> dict[str, Any]:
    score = row.mean("score")
    values = {"n": score.n, "score": score.mean} if score else {"n": 0, "score": None}
    ends = {name: getattr(score, name, None) for name in ("low", "high")}
    return _named(row) | values | ends | _lost(row)


def _costs(row: Row) -> dict[str, Any]:
    head = row.mean("head")
    return _lost(row) | {
        "cache_share": row.memory and row.memory[0] / row.memory[1],
        "head_l1": head and head.mean,
    }


def _saving(saved: Saving) -> dict[str, Any]:
    ends = {name: getattr(saved, name) for name in ("match", "low", "high")}
    return {
        "variant": saved.curve.first.curve_spec,
        "target": {"variant": saved.target.first.curve_spec, "budget": str(saved.target_budget)},
        "score": saved.value,
        "n": saved.n,
        "budgets": [str(budget) for budget in saved.tried],
    } | {name: end and asdict(end) for name, end in ends.items()}
