"""A study as a log of Inspect (inspect_ai 0.3, EvalLog version 2): plain JSON values. No torch.

An Inspect sample has one output and any number of scores: ours are the full cache's text, and a
score for each method and budget with the text that it generated as its answer.
"""

from collections.abc import Sequence
from typing import Any

from ckv_core.experiment.points import Row
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.runs import point_of
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.experiment.study_file import study_values
from ckv_core.records.run_request import FULL, Point, RunRequest

VERSION = 2
_STOPS = {"eos": "stop", "length": "max_tokens"}


def inspect_log(reading: Reading) -> dict[str, Any]:
    """What `inspect_ai.log.read_eval_log` reads, of the results that are there."""
    study, samples = reading.study, reading.samples
    of_sample: dict[str, list[SampleResult]] = {}
    for result in reading.results:
        of_sample.setdefault(result.sample, []).append(result)
    return {
        "version": VERSION,
        "status": "success" if reading.facts.get("state") == "done" else "started",
        "eval": _spec(reading),
        "plan": {
            "steps": [{"solver": "generate", "params": {"scenario": study.scenario}}],
            "config": {"max_tokens": study.max_new_tokens, "temperature": 0.0},
        },
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(of_sample),
            "scores": [_score(study, row) for row in reading.points.rows if row.mean("score")],
        },
        "samples": [
            _sample(study, sample, of_sample[sample.id])
            for sample in samples
            if sample.id in of_sample
        ],
    }


def _spec(reading: Reading) -> dict[str, Any]:
    study, samples, facts = reading.study, reading.samples, reading.facts
    return {
        "created": facts["created_at"],
        "task": study.name,
        "task_args": study_values(study),
        "dataset": {
            "name": ", ".join(f"{key} {value}" for key, value in study.data.items()),
            "samples": len(samples),
            "sample_ids": [sample.id for sample in samples],
        },
        "model": study.model,
        "config": {"epochs": 1},
        "packages": dict(facts.get("environment") or {}),
        "metadata": {"made_by": "CriticalKV Lab", "model_info": facts.get("model_info")},
    }


def _score(study: RunRequest, row: Row) -> dict[str, Any]:
    score, point = row.mean("score"), point_of(row)
    metrics = {"mean": score.mean, "low_95": score.low, "high_95": score.high} if score else {}
    return {
        "name": point_name(point),
        "scorer": study.metric,
        "scored_samples": score.n if score else 0,
        "unscored_samples": row.outcomes.get("failed", 0) + row.outcomes.get("cut", 0),
        "params": {"variant": point.variant, "budget": point.budget},
        "metrics": {
            name: {"name": name, "value": value}
            for name, value in metrics.items()
            if value is not None
        },
    }


def _sample(study: RunRequest, sample: Sample, results: Sequence[SampleResult]) -> dict[str, Any]:
    full = next((each for each in results if each.variant == FULL), None)
    prompt = f"{sample.context}\n\n{sample.question}" if sample.question else sample.context
    failed = {_name(r): r.reason or r.outcome for r in results if r.score is None}
    values: dict[str, Any] = {
        "id": sample.id,
        "epoch": 1,
        "input": prompt,
        "target": list(sample.answers),
        "metadata": {**sample.tags, "metric": sample.metric or study.metric, "failed": failed},
        "scores": {_name(each): _scored(each) for each in results if each.score is not None},
    }
    if full is not None and full.state == "done":
        values["output"] = {
            "model": study.model,
            "choices": [
                {
                    "message": {"role": "assistant", "content": full.text, "source": "generate"},
                    "stop_reason": _STOPS.get(full.stopped or "", "unknown"),
                }
            ],
            "completion": full.text,
        }
    return values


def _scored(result: SampleResult) -> dict[str, Any]:
    return {
        "value": result.score,
        "answer": result.text,
        "metadata": {"prompt_tokens": result.prompt_tokens, **result.figures},
    }


def _name(result: SampleResult) -> str:
    return point_name(Point(result.variant, result.budget))


def point_name(point: Point) -> str:
    """What its score is called in the log."""
    return point.variant if point.budget is None else f"{point.variant} at {point.budget}"
