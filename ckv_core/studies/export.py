"""A study with its results as plain JSON values, written and read; docs/studies.md. No torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from ckv_core.errors import CkvError, ConfigError
from ckv_core.experiment.stats import CONFIDENCE
from ckv_core.request.compare_request import check_context
from ckv_core.results.codec import Reader, record_json
from ckv_core.results.records import ModelInfo, Versions
from ckv_core.runtime.json_fields import JsonField
from ckv_core.runtime.json_text import JsonBounds, NoJsonError
from ckv_core.runtime.read_apart import SMALL_BYTES, Data, read_apart
from ckv_core.studies.decision import Decision, decide_study
from ckv_core.studies.harness import LM_EVAL
from ckv_core.studies.reading import PairedRow, Row, read_results
from ckv_core.studies.records import Sample, SampleResult, Study
from ckv_core.studies.savings import budgets_saved
from ckv_core.studies.scores import METRICS
from ckv_core.studies.spec import MAX_SAMPLES, STUDY_KEYS, study_of, study_values

SCHEMA = 1
MAX_CHARS = 512 * 2**20
BOUNDS = JsonBounds(containers=2**20, values=2**23)
_COSTS = ("failed", "cut", "cache_share", "head_l1")


def export(
    study: Study,
    samples: Sequence[Sample],
    results: Sequence[SampleResult],
    facts: Mapping[str, Any],
    *,
    with_data: bool = False,
) -> dict[str, Any]:
    """Everything that a study says, and what it says it from.

    `facts`: joins `study`: state, times, model and versions. `with_data`: everything that
    `read_export` needs, texts and all, as `data`.
    """
    reading = read_results(study, samples, results)
    decision = decision_values(decide_study(study, samples, results))
    data = {
        "samples": [record_json(sample) for sample in samples],
        "results": [record_json(result) for result in results],
    }
    return {
        "schema": SCHEMA,
        "study": study_values(study) | dict(facts) | {"samples": len(samples)},
        "samples": [_sample(result) for result in results],
        "table": [_row(row) for row in reading.rows],
        "decision": decision
        | {
            "points": [
                asdict(row.point) | {name: getattr(row, name) for name in _COSTS}
                for row in reading.rows
            ],
            "pairs": [_pair(pair) for pair in reading.pairs],
            "savings": [asdict(saved) for saved in budgets_saved(reading)],
            "l1_answers": None if reading.l1_answers is None else asdict(reading.l1_answers),
        },
    } | ({"data": data} if with_data else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A study as a file has it; model and environment are None where it never ran."""

    study: Study
    samples: tuple[Sample, ...]
    results: tuple[SampleResult, ...]
    model: ModelInfo | None
    environment: Mapping[str, str] | None


def read_export(text: str) -> Exported:
    """What `export` wrote with its data, from a hostile text.

    Raises:
        ConfigError: the first thing that is wrong, and where.
    """
    if len(text) > MAX_CHARS:
        raise ConfigError(f"The file has {len(text):,} characters; the limit is {MAX_CHARS:,}.")
    if len(text) <= SMALL_BYTES:
        return _exported(_parts(text))
    with read_apart(_parts, text) as parts:
        return _exported(parts)


def _exported(parts: Iterator[Exported | Sample | SampleResult]) -> Exported:
    head = cast("Exported", next(parts))
    rest = [*parts]
    return replace(
        head,
        samples=tuple(part for part in rest if isinstance(part, Sample)),
        results=tuple(part for part in rest if isinstance(part, SampleResult)),
    )


def _parts(text: Data) -> Iterator[Exported | Sample | SampleResult]:
    """The study without samples and results, then those one by one."""
    try:
        root = JsonField(BOUNDS.read(text), whole="file of a study")
    except NoJsonError as error:
        raise ConfigError(
            f"The file is no JSON ({error}); take one of `ckv export --data`."
        ) from None
    root["schema"].integer(SCHEMA, SCHEMA)
    if root["data"].absent:
        root["data"].fail("samples and results are expected, so export it with its data")
    head, reader = root["study"], Reader(root)
    values = head.members(64)
    study = study_of({key: field.value for key, field in values.items() if key in STUDY_KEYS})
    samples = [
        _checked(at, reader.record(at, Sample)) for at in root["data"]["samples"].items(MAX_SAMPLES)
    ]
    ids = {sample.id for sample in samples}
    if len(ids) < len(samples):
        root["data"]["samples"].fail("each id is expected once")
    points = study.points()
    listed = root["data"]["results"].items(len(samples) * len(points))
    results = {result.key: result for result in (_result(reader, at) for at in listed)}
    wanted = {(name, point.variant, point.budget) for name in ids for point in points}
    if len(results) < len(listed) or not results.keys() <= wanted:
        root["data"]["results"].fail("one result at most of each sample and point is expected")
    yield Exported(
        study=study,
        samples=(),
        results=(),
        model=head["model_info"].maybe(lambda at: reader.record(at, ModelInfo)),
        environment=cast(
            "Mapping[str, str] | None",
            head["environment"].maybe(lambda at: reader.read(at, Versions)),
        ),
    )
    yield from samples
    yield from results.values()


def _result(reader: Reader, at: JsonField) -> SampleResult:
    result = reader.record(at, SampleResult)
    if result.outcome == "cut" and result.score is not None:
        at["score"].fail("null is expected of a text that was cut")
    return result


def _checked(at: JsonField, sample: Sample) -> Sample:
    at["metric"].maybe(lambda metric: metric.one_of("", LM_EVAL, *METRICS))
    if not (sample.answers and sample.id and sample.id.isprintable()):
        at.fail("a sample with an id that can be typed and an answer is expected")
    try:
        check_context(sample.context)
    except CkvError as error:
        at["context"].fail(str(error).rstrip("."))
    return sample


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
        "cautions": list(decision.cautions),
    }


def _sample(result: SampleResult) -> dict[str, Any]:
    names = ("variant", "budget", "score", "text", "state", "outcome", "reason")
    return {"id": result.sample} | {name: getattr(result, name) for name in names}


def _row(row: Row) -> dict[str, Any]:
    names = ("n", "score", "low", "high", "cut", "failed")
    return asdict(row.point) | {name: getattr(row, name) for name in names}


def _pair(pair: PairedRow) -> dict[str, Any]:
    found = asdict(pair.found)
    found |= found.pop("mean") | {"holm_p": pair.holm_p}
    del found["level"]  # scores have no rounding floor
    return asdict(pair.point) | {"other": asdict(pair.other)} | found
