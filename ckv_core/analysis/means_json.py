"""Means over several prompts as plain JSON values: what `analyse --means` writes; no torch.

docs/result_json.md describes the format. It is for whoever reads it elsewhere; nothing reads it
back, for it follows from the runs.
"""

from collections.abc import Sequence
from typing import Any

from ckv_core.analysis.ablation_means import AblationStepMeans, ablation_means
from ckv_core.analysis.aggregate import (
    Aggregate,
    LayerMeans,
    budget_curves,
    hidden_by_layer,
    reduction_by_layer,
    together,
)
from ckv_core.analysis.aggregate_runs import JoinedVariant
from ckv_core.analysis.pairs import Pair
from ckv_core.results.codec import record_json
from ckv_core.results.events import RunResult

SCHEMA = 1


def means_json(results: Sequence[RunResult]) -> dict[str, Any]:
    """Every mean and interval of several runs.

    Args:
        results: oldest first; of a variant that is twice on one prompt the last counts.

    Raises:
        ConfigError: no run, other models, or no variant in common.
    """
    found = together(results)
    joined, members = found.joined, found.members
    model = joined.model
    return {
        "schema": SCHEMA,
        "kind": "means",
        "model": model.name if model else None,
        "n": joined.n,
        "notes": found.notes,
        "variants": [_member_json(member, joined.variants) for member in members],
        "pairs": [_pair_json(pair, joined.variants) for pair in found.pairs],
        "ablation": [_step_json(step) for step in ablation_means(joined.variants)],
        "curves": [
            {
                "spec": curve.spec,
                "alpha": curve.alpha,
                "unit": curve.unit,
                "budgets": [budget.amount for budget, _ in curve.points],
                "variants": [members.index(member) for _, member in curve.points],
            }
            for curve in budget_curves(members)
        ],
    }


def _member_json(member: Aggregate, variants: Sequence[JoinedVariant]) -> dict[str, Any]:
    return record_json(member, leave_out=("joined",)) | {
        "n": member.joined.n,
        "layer_hidden_l1": _layers_json(hidden_by_layer(member.joined)),
        "layer_reduction": _layers_json(reduction_by_layer(member.joined, variants)),
    }


def _pair_json(pair: Pair, variants: Sequence[JoinedVariant]) -> dict[str, Any]:
    return {
        "variant": variants.index(pair.variant),
        "other": variants.index(pair.other),
        "figures": {
            key: record_json(each.mean) | record_json(each, leave_out=("mean",))
            for key, each in pair.figures.items()
        },
    }


def _step_json(means: AblationStepMeans) -> dict[str, Any]:
    step = means.step
    named = {"spec": step.spec, "label": step.label, "change": step.change}
    return named | record_json(means, leave_out=("step",))


def _layers_json(means: LayerMeans | None) -> dict[str, Any] | None:
    """One array per member of an interval, without n, which all layers share."""
    if means is None:
        return None
    layers = list(map(record_json, means))
    return {key: [each[key] for each in layers] for key in ("mean", "low", "high")} | {
        "n": means[0].n
    }
