"""Which part of CriticalKV's gain is un-pooling and which is the value norm, over many texts.

Reads prompts from a JSON Lines file ({"kind", "id", "context", "question"}), measures the
ablation on each with the default model, and prints the tables of docs/explanation/findings.md.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import table
from ckv_core.engine.compare import compare
from ckv_core.experiment.ablation import ablation
from ckv_core.experiment.stats import interval_note, mean_interval
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.loading import load_model
from ckv_core.records.events import RunResult
from ckv_core.records.grid import at_points
from ckv_core.records.records import Float32Array, VariantResult
from ckv_core.records.run_request import DEFAULT_MODEL, RunRequest
from ckv_core.records.variants import VariantSpec

# Beside the steps of `ladder`: no single change, or not one of the paper's.
EXTRAS = {
    "kvpress stage 2": "+critical:stage2=pooled,product=group,epsilon=0.0001",
    "alpha per KV head": "+critical_auto",
}
# What one change does: the step before it and the step after it.
STEPS = {
    "un-pooling, no norm": ("base", "stage 2, no norm"),
    "un-pooling, with norm": ("stage 2 pooled", "CriticalKV"),
    "un-pooling, one stage": ("base", "base, not pooled"),
    "value norm, un-pooled, two stages": ("stage 2, no norm", "CriticalKV"),
    "value norm, un-pooled, one stage": ("base, not pooled", "alpha 0"),
    "value norm, pooled": ("base", "stage 2 pooled"),
    "both": ("base", "CriticalKV"),
    "CriticalKV beyond un-pooling": ("base, not pooled", "CriticalKV"),
    "kvpress' stage 2": ("base", "kvpress stage 2"),
    "alpha 0 instead of 0.25": ("CriticalKV", "alpha 0"),
    "alpha per KV head instead of 0.25": ("CriticalKV", "alpha per KV head"),
    "alpha per KV head instead of 0": ("alpha 0", "alpha per KV head"),
}
STEP_HEADER = (
    "change",
    "from → to",
    "heads that move less",
    "heads that move more",
    "head gain, log2",
    "final gain, log2",
    "final L1 lower",
    "KL lower",
)
# The two steps that the value norm takes, by layer: it is a mean of opposites.
NORM_STEPS = ("value norm, un-pooled, two stages", "value norm, un-pooled, one stage")
LAYER_HEADER = ("change", "layers", "head gain, log2", "texts in which L1 rises")
ABLATION_HEADER = ("rung", "heads below the base", "mean head L1 / base", "final L1 / base")
# Equal kept sets, added up in another order, seldom differ by more than this share of their L1.
ROUNDING = 1e-4


@dataclass(frozen=True, slots=True)
class Optimum:
    """Which of the fixed alphas serves best, and what one per KV head saves in hindsight.

    Attributes:
        alphas: tried, rising.
        best: alpha with the least head L1 summed over all heads.
        head_gain: share of that sum that the best alpha of each KV head would save.
    """

    alphas: tuple[float, ...]
    best: float
    head_gain: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """One base and budget on one text.

    Attributes:
        heads: [layers, query_heads] isolated head L1 by step.
        final: hidden L1 after the last layer, before the final norm, by step.
        kl: nats, by step.
        chosen: [layers, kv_heads] alphas of `+critical_auto`.
        optimum: which of the ablation's fixed alphas serves best, all heads alike or each its own.
    """

    heads: dict[str, Float32Array]
    final: dict[str, float]
    kl: dict[str, float]
    chosen: Float32Array
    optimum: Optimum


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt: its kind, its length in tokens and what was measured by (base, budget)."""

    kind: str
    tokens: int
    settings: dict[tuple[str, str], Measured]


def ablation_specs(base: str, budget: str) -> dict[str, str]:
    """SPEC of the ablation's steps and of the extras, by label."""
    defaults = {"budget": budget}
    steps = {step.label: step.spec for step in ablation(base, defaults)}
    extras = {
        name: VariantSpec.parse(base + selector, defaults).spec for name, selector in EXTRAS.items()
    }
    return steps | extras


def measure(
    loaded: LoadedModel, prompt: dict[str, str], bases: Sequence[str], budgets: Sequence[str]
) -> Text:
    """All steps of every base and budget on one prompt, from one prefill."""
    settings = [(base, budget) for base in bases for budget in budgets]
    specs = [ablation_specs(*setting) for setting in settings]
    request = RunRequest(
        context=prompt["context"],
        question=prompt["question"],
        max_new_tokens=0,
    )
    request = at_points(request, [spec for steps in specs for spec in steps.values()])
    result = RunResult()
    for event in compare(request, loaded):
        result.apply(event)
    if result.prompt is None:
        raise RuntimeError("The run has no prompt.")
    left = iter(result.variants)
    found = [{step: next(left) for step in steps} for steps in specs]
    read = {at: read_setting(steps) for at, steps in zip(settings, found, strict=True)}
    return Text(prompt["kind"], result.prompt.tokens, read)


def read_setting(variants: dict[str, VariantResult]) -> Measured:
    """One base and budget."""
    perturbations = {
        step: variant.perturbation for step, variant in variants.items() if variant.perturbation
    }
    chosen = variants["alpha per KV head"].analysis["head_alpha"]
    return Measured(
        heads={step: found.head_l1 for step, found in perturbations.items()},
        final={step: found.final_hidden_l1 for step, found in perturbations.items()},
        kl={step: found.kl for step, found in perturbations.items()},
        chosen=chosen,
        optimum=optimum_of(variants, chosen.shape[1]),
    )


def optimum_of(variants: dict[str, VariantResult], kv_heads: int) -> Optimum:
    """The best alpha, among CriticalKV's own and those of the ablation."""
    tried = {
        float(variant.params["alpha"]): variant.perturbation.head_l1.astype(np.float64)
        for step, variant in variants.items()
        if (step == "CriticalKV" or re.fullmatch(r"alpha [\d.]+", step)) and variant.perturbation
    }
    alphas = tuple(sorted(tried))
    heads = np.stack([tried[alpha] for alpha in alphas])
    sums = heads.reshape(*heads.shape[:2], kv_heads, -1).sum(axis=-1)
    totals = np.nansum(sums, axis=(1, 2))
    best = int(totals.argmin())
    return Optimum(alphas, alphas[best], 1 - float(np.nansum(sums.min(axis=0)) / totals[best]))


def interval(values: Sequence[float], unit: str = "") -> str:
    """Mean over texts and, where there are enough, its 95 % interval."""
    found = mean_interval(values)
    if found.low is None or found.low == found.high:
        return f"{found.mean:.3g}{unit}"
    return f"{found.mean:.3g} ({found.low:.3g} to {found.high:.3g}){unit}"


def percent(shares: Sequence[float]) -> str:
    """As `interval`, of shares."""
    return interval([100 * share for share in shares], " %")


def share_below(heads: Float32Array, other: Float32Array) -> float:
    """Share of heads whose L1 is below the other's by more than rounding."""
    return float(np.mean(heads < other * (1 - ROUNDING)))


def step_rows(texts: Sequence[Measured]) -> list[tuple[str, ...]]:
    """Per step: heads that move less and more, log2 of L1 before / after, counts of texts."""
    rows: list[tuple[str, ...]] = []
    for name, (old, new) in STEPS.items():
        heads = [(text.heads[old], text.heads[new]) for text in texts]
        wins = sum(text.final[new] < text.final[old] for text in texts)
        kl_wins = sum(text.kl[new] < text.kl[old] for text in texts)
        rows.append(
            (
                name,
                f"{old} → {new}",
                percent([share_below(after, before) for before, after in heads]),
                percent([share_below(before, after) for before, after in heads]),
                interval([float(np.mean(np.log2(before / after))) for before, after in heads]),
                interval([float(np.log2(text.final[old] / text.final[new])) for text in texts]),
                f"{wins} of {len(texts)}",
                f"{kl_wins} of {len(texts)}",
            )
        )
    return rows


def layer_rows(texts: Sequence[Measured]) -> list[tuple[str, ...]]:
    """What the value norm does to the first layer and to the others: log2 of L1 before / after."""
    rows: list[tuple[str, ...]] = []
    for name in NORM_STEPS:
        old, new = STEPS[name]
        gains = np.stack([np.log2(t.heads[old] / t.heads[new]).mean(axis=1) for t in texts])
        last = gains.shape[1] - 1
        for layers, found in (("0", gains[:, :1]), (f"1 to {last}", gains[:, 1:])):
            means = found.mean(axis=1, dtype=np.float64)
            worse = f"{int((means < 0).sum())} of {len(texts)}"
            rows.append((name, layers, interval(means.tolist()), worse))
    return rows


def ablation_rows(texts: Sequence[Measured]) -> list[tuple[str, ...]]:
    """Per step: share of heads below the base, L1 and final L1 relative to the base."""
    return [
        (
            step,
            percent([share_below(text.heads[step], text.heads["base"]) for text in texts]),
            interval([_mean(text.heads[step]) / _mean(text.heads["base"]) for text in texts]),
            interval([text.final[step] / text.final["base"] for text in texts]),
        )
        for step in texts[0].heads
        if step != "base"
    ]


def alpha_rows(texts: Sequence[Measured]) -> list[tuple[str, str]]:
    """Which alphas `+critical_auto` takes, and what an alpha per KV head gains."""
    chosen = [text.chosen for text in texts]
    best = [text.optimum.best for text in texts]
    saved = [
        1 - _mean(text.heads["alpha per KV head"]) / _mean(text.heads[_step(text.optimum)])
        for text in texts
    ]
    tried = texts[0].optimum.alphas
    counts = ", ".join(f"{alpha:g}: {best.count(alpha)}" for alpha in tried)
    return [
        ("KV heads that take alpha 0", percent([_share(each == 0) for each in chosen])),
        (
            "KV heads that take 0.05 to 0.25",
            percent([_share((each > 0) & (each < 0.275)) for each in chosen]),
        ),
        ("KV heads that take more", percent([_share(each >= 0.275) for each in chosen])),
        ("texts by their best fixed alpha", counts),
        ("head L1 saved against it: `+critical_auto`", percent(saved)),
        (
            "head L1 saved against it: best of these alphas per KV head, in hindsight",
            percent([text.optimum.head_gain for text in texts]),
        ),
    ]


def report(texts: Sequence[Text]) -> None:
    """All tables."""
    kinds = {
        kind: [text for text in texts if text.kind == kind]
        for kind in sorted({t.kind for t in texts})
    }
    counts = ", ".join(f"{len(found)} {kind}" for kind, found in kinds.items())
    lengths = [text.tokens for text in texts]
    print(f"{len(texts)} texts ({counts}), {min(lengths):,} to {max(lengths):,} prompt tokens.")
    settings = list(texts[0].settings)
    for at in settings:
        found = [text.settings[at] for text in texts]
        where = f"{at[0]}, budget {at[1]}, n = {len(found)} texts"
        table(f"{where}: what each change does", STEP_HEADER, step_rows(found))
        table(f"{where}: the value norm by layer", LAYER_HEADER, layer_rows(found))
        table(f"{where}: the ablation", ABLATION_HEADER, ablation_rows(found))
        table(f"{where}: alpha per KV head", ("what", "value"), alpha_rows(found))
    first = settings[0]
    for kind, some in kinds.items():
        rows = step_rows([text.settings[first] for text in some])
        where = f"{first[0]}, budget {first[1]}, {kind} only, n = {len(some)} texts"
        table(f"{where}: what each change does", STEP_HEADER, rows)
        if note := interval_note(len(some)):
            print(f"\n{note}")


def _mean(heads: Float32Array) -> float:
    return float(heads.mean(dtype=np.float64))


def _share(heads: NDArray[np.bool_]) -> float:
    return float(heads.mean())


def _step(optimum: Optimum) -> str:
    """The ablation's label of the best fixed alpha."""
    own = VariantSpec.parse("snapkv+critical").params["alpha"]
    return "CriticalKV" if optimum.best == own else f"alpha {optimum.best:g}"


def main() -> None:
    """Measure all prompts of a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=Path, help="JSON Lines file")
    parser.add_argument("--base", action="append", help="method; default snapkv and adakv")
    parser.add_argument("--budget", action="append", help="default 10% and 20%")
    options = parser.parse_args()
    bases, budgets = options.base or ["snapkv", "adakv"], options.budget or ["10%", "20%"]
    loaded = load_model(DEFAULT_MODEL, report=lambda _: None)
    text = options.prompts.read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line.strip()]
    texts = []
    for number, line in enumerate(lines, start=1):
        texts.append(measure(loaded, json.loads(line), bases, budgets))
        print(f"{number} of {len(lines)}", file=sys.stderr, flush=True)
    report(texts)


if __name__ == "__main__":
    main()
