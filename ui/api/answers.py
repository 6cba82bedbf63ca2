"""What the endpoints of ui/api/endpoints.py tell of a run, as plain JSON values."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ckv_core.experiment.export import export
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.verdict import verdict_of
from ckv_core.records.codec import measured_json
from ckv_core.records.events import RunResult
from ui.services.live_runs import RunSnapshot

# What get_run tells of a variant; the rest may be megabytes.
SHORT = (
    "spec",
    "label",
    "params",
    "receipt",
    "text",
    "stopped",
    "agreement",
    "first_difference",
    "outcome",
    "answer_found",
    "answer_scores",
    "time",
)
FILES = ("result.json", "bundle.zip", "table.csv", "report.html", "kvpress.py")
SAMPLES_FILES = ("study.json", "report.html")
SHORT_PERTURBATION = ("kl", "final_hidden_l1", "improved_head_share")
Result = dict[str, Any]


def run_json(snapshot: RunSnapshot) -> Result:
    """A run as far as it is, without what may be large."""
    result, progress, floor = snapshot.result, snapshot.progress, snapshot.result.floor
    verdict = verdict_of(result) if snapshot.is_final else None
    return _state_json(snapshot, FILES) | {
        "progress": {"stage": progress.stage, "fraction": progress.fraction} if progress else None,
        "queue_ahead": snapshot.queue_ahead,
        "prompt_tokens": result.prompt.tokens if result.prompt else None,
        "verdict": verdict.to_json() if verdict else None,
        "floor": floor and {"final_hidden_l1": floor.final_hidden_l1, "kl": floor.kl},
        "variants": _variants_json(result),
        "timings_ms": dict(snapshot.stage_ms),
    }


def samples_json(snapshot: RunSnapshot, reading: Reading) -> Result:
    """A run of many samples as far as it is: verdict, table and decision, without its samples."""
    pace, whole = snapshot.pace, export(reading.study, reading.samples, reading.results, {})
    return _state_json(snapshot, SAMPLES_FILES) | {
        "progress": {"done": pace.done, "total": pace.total} if pace else None,
        "samples": len(reading.samples),
        "verdict": reading.verdict.to_json(),
        "table": whole["table"],
        "decision": whole["decision"],
    }


def _state_json(snapshot: RunSnapshot, files: Sequence[str]) -> Result:
    return {
        "slug": snapshot.slug,
        "title": snapshot.title,
        "state": snapshot.state,
        "reason": snapshot.reason,
        "over": snapshot.is_final,
        "link": f"/r/{snapshot.slug}",
        "model": snapshot.request.model,
        "scenario": snapshot.request.scenario,
        "files": {name: f"/data/{snapshot.slug}/{name}" for name in files},
    }


def _variants_json(result: RunResult) -> list[Result]:
    """The short part of docs/reference/result_json.md."""
    light = [
        replace(v, retained=None, token_ids=(), token_texts=(), analysis={}, forced_steps=())
        for v in result.variants
    ]
    rows = measured_json(replace(result, variants=light, prompt=None))["variants"]
    return [
        {name: row[name] for name in SHORT}
        | {"loops": variant.loops}
        | {name: row["perturbation"].get(name) for name in SHORT_PERTURBATION}
        for row, variant in zip(rows, result.variants, strict=True)
    ]
