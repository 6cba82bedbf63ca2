"""Saved runs side by side: which variants belong together, and what differs. No Gradio."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckv_core.analysis.agreement import first_difference
from ckv_core.analysis.regimes import regime_named, run_regimes
from ckv_core.request.external_selection import OWN
from ckv_core.request.identity import NOT_RECORDED, Identity, identify, told_apart
from ckv_core.request.variants import spec_without
from ckv_core.results.events import RunResult
from ckv_core.results.outcomes import outcome_word
from ckv_core.results.records import RetainedSet, VariantResult
from ui.services.live_runs import RunSnapshot
from ui.tables.summary import four_digits

LISTED_POSITIONS = 100
TEXT_CHARS = 200
NONE = "none"
# Why a figure is not there.
ABSENT = "not in this run"
UNMEASURED = "not measured"
REFERENCE = "the reference"
# Outcome first, then mechanism and cost.
FIGURES = ("Outcome", "Agreement", "KL (nats)", "Final hidden L1", "Kept entries")


@dataclass(frozen=True, slots=True)
class Pair:
    """One variant of each run; as many as have it.

    Attributes:
        spec: what they have in common.
        variants: per run; None where it has none.
        differs: per run, what it does not have in common with the others: `budget=64`.
    """

    spec: str
    variants: tuple[VariantResult | None, ...]
    differs: tuple[str, ...]

    @property
    def method(self) -> str:
        """Of the first that has it."""
        return next(variant.method for variant in self.variants if variant is not None)

    @property
    def runs(self) -> list[int]:
        """Indices of the runs that have it."""
        return [at for at, variant in enumerate(self.variants) if variant is not None]


_Row = list[tuple[Identity, VariantResult] | None]


def pair_up(results: Sequence[RunResult]) -> list[Pair]:
    """Pairs in the order of their first variants, those of a single run among them.

    The same settings and budget are paired first; of what is left the same method, and of those
    the ones that differ least: in few parameters, then little in the budget.
    """
    rows = _same(results)
    specs = told_apart({identity: variant.spec for identity, variant in map(_first, rows)})
    return [_pair(row, specs) for row in _merged(rows)]


def _same(results: Sequence[RunResult]) -> list[_Row]:
    """Rows of variants that are the same by all that decides their outcome."""
    known: dict[str, set[Identity]] = {}
    for variant in (variant for result in results for variant in result.variants):
        if not (identity := identify(variant)).settings.unknown:
            known.setdefault(variant.spec, set()).add(identity)

    def row_of(variant: VariantResult) -> Identity:
        own, same = identify(variant), known.get(variant.spec, set())
        waits = variant.receipt is None  # not selected, so no parameters
        return next(iter(same)) if waits and own.settings.unknown and len(same) == 1 else own

    rows: dict[Identity, _Row] = {}
    for at, result in enumerate(results):
        for variant in result.variants:
            identity = row_of(variant)
            rows.setdefault(identity, [None] * len(results))[at] = (identity, variant)
    return list(rows.values())


def _merged(rows: list[_Row]) -> list[_Row]:
    """Incomplete rows of one method joined: with the first run's first, the nearest ones first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, row in enumerate(rows):
        if None in row:
            identity, variant = _first(row)
            label = variant.label if variant.method == OWN else ""
            groups.setdefault((identity.settings.name, label), []).append(index)
    near = sorted(
        (
            not (rows[one][0] or rows[other][0]),
            _distance(_first(rows[one])[0], _first(rows[other])[0]),
            one,
            other,
        )
        for group in groups.values()
        for one, other in combinations(group, 2)
    )
    joined = list(range(len(rows)))  # the row that now holds what was in this one
    for *_, one, other in near:
        into, out = sorted((joined[one], joined[other]))
        if into != out and not any(a and b for a, b in zip(rows[into], rows[out], strict=True)):
            rows[into] = [a or b for a, b in zip(rows[into], rows[out], strict=True)]
            joined = [into if at == out else at for at in joined]
    return [row for at, row in enumerate(rows) if joined[at] == at]


def _distance(one: Identity, other: Identity) -> tuple[int, bool, float]:
    """How many parameters differ, whether budgets are of different units, and their ratio."""
    left, right = dict(one.settings.parameters), dict(other.settings.parameters)
    parameters = sum(left.get(key) != right.get(key) for key in left.keys() | right.keys())
    if one.budget is None or other.budget is None:
        return parameters, one.budget != other.budget, 1.0
    amounts = sorted((one.budget.amount, other.budget.amount))
    return parameters, one.budget.unit != other.budget.unit, amounts[1] / amounts[0]


def _pair(row: _Row, specs: dict[Identity, str]) -> Pair:
    own = [{} if each is None else _parameters(each[0]) for each in row]
    there = [parameters for each, parameters in zip(row, own, strict=True) if each is not None]
    differing = [key for key in there[0] if len({each.get(key, "") for each in there}) > 1]
    first = specs[_first(row)[0]]
    return Pair(
        spec=spec_without(first, *differing) if differing else first,
        variants=tuple(None if each is None else each[1] for each in row),
        differs=tuple(
            ", ".join(f"{key}={parameters[key]}" for key in differing if key in parameters)
            for parameters in own
        ),
    )


def _parameters(identity: Identity) -> dict[str, str]:
    """All that decides the outcome as text, the budget first."""
    budget = {"budget": str(identity.budget)} if identity.budget else {}
    return budget | {
        key: NOT_RECORDED if value is None else str(value)
        for key, value in identity.settings.parameters
    }


def _first(row: _Row) -> tuple[Identity, VariantResult]:
    return next(each for each in row if each is not None)


def differences_value(runs: Sequence[RunSnapshot]) -> dict[str, Any]:
    """Value of the RunDifferences component; of two or more runs each is set against the first.

    `same_prompt` is None while one of them has no tokens.
    """
    prompts = [run.result.prompt for run in runs if run.result.prompt is not None]
    texts = {(prompt.token_ids, prompt.compressed_tokens) for prompt in prompts}
    same = len(texts) == 1 if len(prompts) == len(runs) else None
    pairs = pair_up([run.result for run in runs])
    shared = [pair for pair in pairs if len(pair.runs) > 1]
    alone = [pair for pair in pairs if len(pair.runs) == 1]
    head = run_regimes(*(run.result for run in runs)).head
    is_judged = any(v.outcome not in (None, "none") for run in runs for v in run.result.variants)
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


def layer_overlap(left: RetainedSet, right: RetainedSet) -> list[float]:
    """[layers] Jaccard index of the kept slots of two sets of one shape; 1 where both are empty."""
    one, other = left.mask(), right.mask()
    both = (one & other).sum(axis=(1, 2))
    either = (one | other).sum(axis=(1, 2))
    shares = np.where(either == 0, 1.0, both / np.maximum(either, 1))
    return [float(share) for share in shares]


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
    answer = outcome_word(variant) or UNMEASURED
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
    present = [(i, variant) for i, variant in enumerate(pair.variants) if variant is not None]
    base_index, base = present[0]
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
            for index, other in present[1:]
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
