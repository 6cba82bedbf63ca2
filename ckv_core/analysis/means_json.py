"""Means over several prompts as plain JSON values: what `analyse --means` writes; no torch.

docs/result_json.md describes the format. It is for whoever reads it elsewhere; nothing reads it
back, for it follows from the runs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ckv_core.analysis.ablation_means import AblationStepMeans, ablation_means
from ckv_core.analysis.aggregate import (
    Aggregate,
    HeadWins,
    LayerMeans,
    budget_curves,
    hidden_by_layer,
    reduction_by_layer,
    together,
)
from ckv_core.analysis.aggregate_runs import JoinedVariant
from ckv_core.analysis.pairs import Pair
from ckv_core.experiment.stats import Interval
from ckv_core.results.codec import array_json, number_json
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
    return {
        "spec": member.spec,
        "label": member.label,
        "n": member.joined.n,
        "figures": {key: _interval_json(each) for key, each in member.figures.items()},
        "head_wins": _wins_json(member.head_wins) if member.head_wins else None,
        "layer_hidden_l1": _layers_json(hidden_by_layer(member.joined)),
        "layer_reduction": _layers_json(reduction_by_layer(member.joined, variants)),
        "violations": member.violations,
        "checked": member.checked,
        "bounded": member.bounded,
        "outcomes": dict(member.outcomes),
    }


def _interval_json(interval: Interval) -> dict[str, Any]:
    ends = {"low": interval.low, "high": interval.high}
    known = {key: None if end is None else number_json(end) for key, end in ends.items()}
    return {"mean": number_json(interval.mean), **known, "n": interval.n}


def _pair_json(pair: Pair, variants: Sequence[JoinedVariant]) -> dict[str, Any]:
    return {
        "variant": variants.index(pair.variant),
        "other": variants.index(pair.other),
        "figures": {
            key: _interval_json(each.mean)
            | {"lower": each.lower, "higher": each.higher, "level": each.level, "p": each.p}
            for key, each in pair.figures.items()
        },
    }


def _step_json(means: AblationStepMeans) -> dict[str, Any]:
    figures = {
        "head_l1": means.head_l1,
        "head_l1_of_base": means.head_of_base,
        "better_heads": means.better_heads,
        "final_hidden_l1": means.final_hidden_l1,
        "final_hidden_l1_of_base": means.final_of_base,
    }
    known = {key: None if each is None else _interval_json(each) for key, each in figures.items()}
    step = means.step
    return {"spec": step.spec, "label": step.label, "change": step.change, "n": means.n, **known}


def _layers_json(means: LayerMeans | None) -> dict[str, Any] | None:
    """One array per member of an interval, without n, which all layers share."""
    if means is None:
        return None
    layers = [_interval_json(each) for each in means]
    return {key: [each[key] for each in layers] for key in ("mean", "low", "high")} | {
        "n": means[0].n
    }


def _wins_json(wins: HeadWins) -> dict[str, Any]:
    return {
        "count": wins.count,
        "heads": wins.heads,
        "share": number_json(wins.share),
        "n": wins.n,
        "own": array_json(wins.own.astype(np.float32)),
        "base": array_json(wins.base.astype(np.float32)),
    }
