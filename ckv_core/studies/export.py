"""A study with its results as plain JSON values; docs/studies.md describes them. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ckv_core.analysis.bootstrap import CONFIDENCE
from ckv_core.studies.decision import Decision, decide
from ckv_core.studies.reading import PairedRow, Row, read_results
from ckv_core.studies.records import Sample, SampleResult, Study
from ckv_core.studies.spec import study_values

SCHEMA = 1


def export(
    study: Study,
    samples: Sequence[Sample],
    results: Sequence[SampleResult],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that a study says, and what it says it from.

    Args:
        study: the definition.
        samples: all.
        results: those that are there.
        facts: joins `study`: state, times, model and versions.
    """
    reading = read_results(study, samples, results)
    decision = decision_values(decide(study, samples, results))
    return {
        "schema": SCHEMA,
        "study": study_values(study) | dict(facts) | {"samples": len(samples)},
        "samples": [_sample(result) for result in results],
        "table": [_row(row) for row in reading.rows],
        "decision": decision
        | {
            "points": [_costs(row) for row in reading.rows],
            "pairs": [_pair(pair) for pair in reading.pairs],
            "l1_answers": None if reading.l1_answers is None else asdict(reading.l1_answers),
        },
    }


def decision_values(decision: Decision) -> dict[str, Any]:
    """The answer as plain values."""
    found = decision.recommended
    return {
        "sentence": decision.sentence,
        "recommended": None
        if found is None
        else {"variant": found.variant, "budget": found.budget},
        "tolerance": decision.tolerance,
        "confidence": CONFIDENCE,
        "methods": [asdict(method) for method in decision.methods],
        "cautions": list(decision.cautions),
    }


def _sample(result: SampleResult) -> dict[str, Any]:
    names = ("variant", "budget", "score", "text", "state", "reason")
    return {"id": result.sample} | {name: getattr(result, name) for name in names}


def _row(row: Row) -> dict[str, Any]:
    return asdict(row.point) | {name: getattr(row, name) for name in ("n", "score", "low", "high")}


def _costs(row: Row) -> dict[str, Any]:
    return asdict(row.point) | {
        name: getattr(row, name) for name in ("failed", "cache_share", "head_l1")
    }


def _pair(pair: PairedRow) -> dict[str, Any]:
    values = asdict(pair)
    return {**values.pop("point"), "other": values.pop("other"), **values}
