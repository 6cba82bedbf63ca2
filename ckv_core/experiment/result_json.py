"""The result JSON with what pages and commands read off it: `compare --json`, Export; no torch.

The readings are for programs that read the file elsewhere. All of them follow from the rest of the
file, so they are never read back. docs/reference/result_json.md describes them.
"""

from collections.abc import Sequence
from typing import Any

from ckv_core.errors import ConfigError
from ckv_core.experiment.ablation import ablation_of
from ckv_core.experiment.evidence import held
from ckv_core.experiment.points import POINT_METRICS, Curve
from ckv_core.experiment.sweep import Saving, curves, matched_metrics, savings
from ckv_core.records.chain import check_chain
from ckv_core.records.codec import measured_json, number_json, plain
from ckv_core.records.events import RunResult
from ckv_core.records.metrics import METRICS
from ckv_core.records.passages import spans_of

# A sweep of 255 points has up to 64,770 pairs of curves.
MAX_PAIRS = 256
_HELD = (
    "entries slots share=mean by_chance=chance whole heads layer_share=per_layer "
    "layer_by_chance=chance_per_layer"
)


def to_json(result: RunResult, passages: Sequence[str] = ()) -> dict[str, Any]:
    """A run, whole or partial, as plain JSON values; no NaN or infinity among them.

    `passages`: texts whose kept slots are counted in `readings`; one that does not occur in the
    compressed prompt is there without spans.
    """
    return measured_json(result) | {"readings": derived_json(result, passages)}


def derived_json(result: RunResult, passages: Sequence[str] = ()) -> dict[str, Any]:
    """Evidence, bounds, ablation and, of a sweep, curves and savings.

    A list is empty where the run has no such thing, also where an imported run says what nothing
    can be read off.

    `passages`: texts to look for in the compressed prompt; one that does not occur has no spans,
    and one that no kept set is known of no variants. Blank ones ask for nothing.
    """
    lines = curves(result) if result.kind == "sweep" else []
    return {
        "evidence": _evidence(result, passages),
        "bounds": _bounds(result),
        "ablation": _ablation(result),
        "curves": _curves(lines),
        "savings": _savings(result, lines),
    }


def _evidence(result: RunResult, passages: Sequence[str]) -> list[dict[str, Any]]:
    if result.prompt is None or result.model is None:
        return []
    layers, documents = result.model.evictable_layers, []
    for text in filter(str.strip, dict.fromkeys(passages)):
        spans = spans_of(result.prompt, text)
        rows = [
            {"variant": index} | _fields(each, _HELD)
            for index, variant in enumerate(result.variants)
            if (each := held(variant, spans, layers)) is not None
        ]
        documents.append({"text": text, "spans": [list(span) for span in spans], "variants": rows})
    return documents


def _bounds(result: RunResult) -> list[dict[str, Any]]:
    metrics = ("sigma_over_half", "oracle_over_half", "tightness", "group_tightness")
    return [
        {"variant": index}
        | {key: _number(METRICS[key].read(variant)) for key in metrics}
        | _fields(chain, "heads covered violations")
        for index, variant in enumerate(result.variants)
        if (chain := check_chain(variant)) is not None
    ]


def _ablation(result: RunResult) -> list[dict[str, Any]]:
    try:
        steps = ablation_of(result)
    except ConfigError:  # an imported SPEC that nobody can parse
        return []
    measured = "head_l1 better_heads heads final_hidden_l1 kl"
    return [
        _fields(each, "variant=index")
        | _fields(each.step, "label change")
        | _fields(each, measured)
        for each in steps
    ]


def _curves(lines: Sequence[Curve]) -> list[dict[str, Any]]:
    return [
        {
            "spec": line.first.curve_spec,
            "alpha": _number(line.first.alpha),
            "unit": line.unit,
            "budgets": [budget.amount for budget, _ in line.rows],
            "variants": [row.index for _, row in line.rows],
            "metrics": {
                key: [_number(mean.mean if mean else None) for mean in means]
                for key in POINT_METRICS
                if any(means := [row.mean(key) for _, row in line.rows])
            },
        }
        for line in lines
    ]


def _savings(result: RunResult, lines: Sequence[Curve]) -> list[dict[str, Any]]:
    """What each curve needs for every point of each other one, by each metric."""
    if len(lines) < 2:
        return []
    plain_first = sorted(lines, key=lambda line: line.first.identity.settings.critical)
    return [
        {
            "metric": metric.key,
            "target": target.first.curve_spec,
            "target_budgets": [budget.amount for budget, _ in target.means(metric.key)],
            "methods": [
                _method(line, list(savings(line, target, metric.key)))
                for line in lines
                if line is not target
            ],
        }
        for metric in matched_metrics(result)
        for target in plain_first[: MAX_PAIRS // (len(lines) - 1)]
        if target.means(metric.key)
    ]


def _method(line: Curve, needed: Sequence[Saving]) -> dict[str, Any]:
    return {
        "spec": line.first.curve_spec,
        "budgets": [_number(each.match.budget) for each in needed],
        "outcomes": [each.match.outcome for each in needed],
        "saved": [_number(each.share) for each in needed],
    }


def _fields(found: object, names: str) -> dict[str, Any]:
    """Members of a record as JSON: each `name`, or `key=name` under another key."""
    pairs = [name.partition("=") for name in names.split()]
    return {key: plain(getattr(found, name or key)) for key, _, name in pairs}


def _number(value: float | None) -> float | str | None:
    return None if value is None else number_json(float(value))
