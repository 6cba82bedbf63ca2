"""Saved runs side by side: what differs in settings, generated tokens and kept sets. No Gradio."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckv_core.analysis.regimes import regime_named, run_regimes
from ckv_core.results.events import RunResult
from ckv_core.results.records import RetainedSet, VariantResult
from ui.compare_runs.pairs import Pair, pair_up
from ui.services.live_runs import RunSnapshot
from ui.tables.summary_columns import four_digits

LISTED_POSITIONS = 100
TEXT_CHARS = 200
NONE = "none"
# Why a figure is not there.
ABSENT = "not in this run"
UNMEASURED = "not measured"
REFERENCE = "the reference"
# Outcome first, then mechanism and cost.
FIGURES = ("Answer found", "Agreement", "KL (nats)", "Final hidden L1", "Kept entries")


def differences_value(runs: Sequence[RunSnapshot]) -> dict[str, Any]:
    """Value of the RunDifferences component; every run is set against the first.

    `same_prompt` is None while one of them has no tokens.

    Args:
        runs: two or more.
    """
    first = runs[0]
    same = None
    if all(run.result.prompt is not None for run in runs):
        same = all(_same_prompt(first.result, run.result) for run in runs[1:])
    pairs = pair_up([run.result for run in runs])
    shared = [pair for pair in pairs if len(pair.runs) > 1]
    alone = [pair for pair in pairs if len(pair.runs) == 1]
    head = run_regimes(*(run.result for run in runs)).head
    is_judged = any(v.answer_found is not None for run in runs for v in run.result.variants)
    first_figure = 0 if is_judged else 1
    return {
        "runs": [{"slug": run.slug, "title": run.title, "state": run.state} for run in runs],
        "settings": _differing_settings(runs),
        "same_prompt": same,
        "figure_names": FIGURES[first_figure:],
        "head": head,
        "figures": [
            {
                "spec": pair.spec,
                "regime": regime_named(pair.method) if head else "",
                "differs": pair.differs,
                "cells": [_figures(variant)[first_figure:] for variant in pair.variants],
            }
            for pair in shared
        ],
        "variants": [_tokens(runs, pair) for pair in shared] if same else [],
        "alone": [
            {"run": at, "specs": [pair.spec for pair in alone if pair.runs == [at]]}
            for at in sorted({pair.runs[0] for pair in alone})
        ],
    }


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first token in which two generations differ; None if they are equal."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def layer_overlap(left: RetainedSet, right: RetainedSet) -> list[float]:
    """[layers] Jaccard index of the kept slots of two sets of one shape; 1 where both are empty."""
    one, other = left.mask(), right.mask()
    both = (one & other).sum(axis=(1, 2))
    either = (one | other).sum(axis=(1, 2))
    shares = np.where(either == 0, 1.0, both / np.maximum(either, 1))
    return [float(share) for share in shares]


def _same_prompt(left: RunResult, right: RunResult) -> bool:
    if left.prompt is None or right.prompt is None:
        return False
    return (left.prompt.token_ids, left.prompt.compressed_tokens) == (
        right.prompt.token_ids,
        right.prompt.compressed_tokens,
    )


def _differing_settings(runs: Sequence[RunSnapshot]) -> list[dict[str, Any]]:
    """Only what is not the same in all runs: request, model and environment."""
    described = [_settings(run) for run in runs]
    names = list(dict.fromkeys(name for each in described for name in each))
    rows = [(name, [each.get(name, "") for each in described]) for name in names]
    return [
        {"name": name, "values": [_plain(value) for value in values]}
        for name, values in rows
        if any(value != values[0] for value in values)
    ]


def _settings(run: RunSnapshot) -> dict[str, object]:
    asked = run.request
    settings: dict[str, object] = {f.name: getattr(asked, f.name) for f in fields(asked)}
    model = run.result.model
    if model is not None:
        served = ("name", "sha256", "dtype", "device")
        settings |= {f"served {name}": str(getattr(model, name)) for name in served}
    return settings | {f"version of {k}": str(v) for k, v in run.result.environment.items()}


def _plain(value: object) -> str:
    """As text: every item of a list, each and a long text cut short."""
    if isinstance(value, tuple):
        return "\n".join(_cut(str(item)) for item in value) or NONE
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in sorted(value.items())) or NONE
    return _cut(str(value)) or NONE


def _cut(text: str) -> str:
    if len(text) <= TEXT_CHARS:
        return text
    return f"{text[:TEXT_CHARS]}… ({len(text):,} characters)"


def _figures(variant: VariantResult | None) -> list[str]:
    """In the order of FIGURES."""
    if variant is None:
        return [ABSENT] * len(FIGURES)
    receipt, moved = variant.receipt, variant.perturbation
    answer = {True: "yes", False: "no", None: UNMEASURED}[variant.answer_found]
    kept = f"{receipt.retained_entries:,}" if receipt else UNMEASURED
    if variant.method == "full":
        return [answer, *[REFERENCE] * 3, kept]
    return [
        answer,
        UNMEASURED if variant.agreement is None else f"{variant.agreement:.0%}",
        four_digits(moved.kl) if moved else UNMEASURED,
        four_digits(moved.final_hidden_l1) if moved else UNMEASURED,
        kept,
    ]


def _tokens(runs: Sequence[RunSnapshot], pair: Pair) -> dict[str, Any]:
    """One variant in every run that has it, set against the first such run."""
    found = [(i, variant) for i, variant in enumerate(pair.variants) if variant is not None]
    base_index, base = found[0]
    prompt = runs[0].result.prompt
    pieces = prompt.pieces if prompt else ()
    return {
        "spec": pair.spec,
        "differs": pair.differs,
        "label": base.label,
        "base": base_index,
        "tokens": list(base.token_texts),
        "others": [
            {
                "run": index,
                "tokens": list(other.token_texts),
                "first": first_difference(base.token_ids, other.token_ids),
                "differs": [
                    at
                    for at, token in enumerate(other.token_ids)
                    if at >= len(base.token_ids) or base.token_ids[at] != token
                ],
                "kept": _kept(base.retained, other.retained, pieces),
            }
            for index, other in found[1:]
        ],
    }


def _kept(
    base: RetainedSet | None, other: RetainedSet | None, pieces: Sequence[str]
) -> dict[str, Any] | None:
    """None unless both have kept sets of one shape."""
    if base is None or other is None:
        return None
    one, two = base.mask(), other.mask()
    if one.shape != two.shape:
        return None
    left = np.logical_or.reduce(one, axis=(0, 1))
    right = np.logical_or.reduce(two, axis=(0, 1))
    return {
        "equal": bool((one == two).all()),
        "jaccard": layer_overlap(base, other),
        "only_base": _listed(np.logical_and(left, ~right), pieces),
        "only_other": _listed(np.logical_and(right, ~left), pieces),
    }


def _listed(positions: NDArray[np.bool_], pieces: Sequence[str]) -> dict[str, Any]:
    at = np.flatnonzero(positions)
    shown = [int(position) for position in at[:LISTED_POSITIONS]]
    return {"count": len(at), "tokens": [[position, pieces[position]] for position in shown]}
