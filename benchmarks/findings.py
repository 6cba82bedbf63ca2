"""Which part of CriticalKV's gain is un-pooling and which is the value norm, over many texts.

Reads prompts from a JSON Lines file ({"kind", "id", "context", "question"}), measures the
ablation ladder on each with the default model, and prints the tables of docs/findings.md.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import table
from ckv_core.config import DEFAULT_MODEL, CompareRequest
from ckv_core.engine.compare import compare
from ckv_core.events import RunResult
from ckv_core.metrics.intervals import mean_interval
from ckv_core.modeling.loaded import LoadedModel
from ckv_core.modeling.loading import load_model

RUNGS = {
    "base": "{base}",
    "base, not pooled": "{base}:pool=none",
    "stage 2 un-pooled, no norm": "{base}+critical:norm=off",
    "CriticalKV": "{base}+critical",
    "alpha 0": "{base}+critical:alpha=0",
    "alpha 0.5": "{base}+critical:alpha=0.5",
    "alpha 1": "{base}+critical:alpha=1",
    "group max": "{base}+critical:group=max",
    "preset kvpress": "{base}+critical:preset=kvpress",
    "kvpress stage 2 only": "{base}+critical:stage2=pooled,product=group,epsilon=0.0001",
}
# The step from one rung to another: what that one change does.
STEPS = {
    "un-pooling (no norm)": ("base", "stage 2 un-pooled, no norm"),
    "value norm": ("stage 2 un-pooled, no norm", "CriticalKV"),
    "both: CriticalKV": ("base", "CriticalKV"),
    "kvpress stage 2": ("base", "kvpress stage 2 only"),
    "base without pooling": ("base", "base, not pooled"),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One text: per (base, budget, rung) head L1 [layers, query_heads], final L1 and KL."""

    kind: str
    tokens: int
    heads: dict[tuple[str, str, str], NDArray[np.float32]]
    final: dict[tuple[str, str, str], float]
    kl: dict[tuple[str, str, str], float]


def measure(
    loaded: LoadedModel, prompt: dict[str, str], bases: Sequence[str], budgets: Sequence[str]
) -> Measured:
    """The ladder of every base and budget on one prompt, from one prefill."""
    keys, specs = [], []
    for base in bases:
        for budget in budgets:
            for rung, pattern in RUNGS.items():
                spec = pattern.format(base=base)
                specs.append(f"{spec}{',' if ':' in spec else ':'}budget={budget}")
                keys.append((base, budget, rung))
    request = CompareRequest(
        context=prompt["context"],
        question=prompt["question"],
        kind="sweep",
        variants=tuple(specs),
        max_new_tokens=0,
    )
    result = RunResult()
    for event in compare(request, loaded):
        result.apply(event)
    assert result.prompt is not None
    found = [variant.perturbation for variant in result.variants]
    pairs = [(key, p) for key, p in zip(keys, found, strict=True) if p is not None]
    return Measured(
        prompt["kind"],
        result.prompt.tokens,
        {key: p.head_l1 for key, p in pairs},
        {key: p.final_hidden_l1 for key, p in pairs},
        {key: p.kl for key, p in pairs},
    )


def interval(values: Sequence[float]) -> str:
    """Mean over texts and, where there are enough, its 95 % interval."""
    found = mean_interval(values)
    if found.low is None or found.low == found.high:
        return f"{found.mean:.3g}"
    return f"{found.mean:.3g} ({found.low:.3g} to {found.high:.3g})"


def step_rows(texts: Sequence[Measured], base: str, budget: str) -> list[tuple[str, ...]]:
    """Per step: share of heads that move less, log2 of the L1 ratio, final layer, KL."""
    rows = []
    for name, (before, after) in STEPS.items():
        old, new = (base, budget, before), (base, budget, after)
        lower = [float(np.mean(t.heads[new] < t.heads[old])) for t in texts]
        gain = [float(np.mean(np.log2(t.heads[old] / t.heads[new]))) for t in texts]
        final = [float(np.log2(t.final[old] / t.final[new])) for t in texts]
        wins = sum(t.final[new] < t.final[old] for t in texts)
        kl_wins = sum(t.kl[new] < t.kl[old] for t in texts)
        rows.append(
            (
                name,
                interval([100 * share for share in lower]) + " %",
                interval(gain),
                interval(final),
                f"{wins} of {len(texts)}",
                f"{kl_wins} of {len(texts)}",
            )
        )
    return rows


def rung_rows(texts: Sequence[Measured], base: str, budget: str) -> list[tuple[str, ...]]:
    """Per rung: share of heads below the base, L1 and final L1 relative to the base."""
    rows = []
    first = (base, budget, "base")
    for rung in list(RUNGS)[1:]:
        key = (base, budget, rung)
        lower = [100 * float(np.mean(t.heads[key] < t.heads[first])) for t in texts]
        heads = [float(t.heads[key].mean() / t.heads[first].mean()) for t in texts]
        final = [t.final[key] / t.final[first] for t in texts]
        rows.append((rung, interval(lower) + " %", interval(heads), interval(final)))
    return rows


def report(texts: Sequence[Measured], bases: Sequence[str], budgets: Sequence[str]) -> None:
    """All tables."""
    kinds = {
        kind: [text for text in texts if text.kind == kind]
        for kind in sorted({t.kind for t in texts})
    }
    counts = ", ".join(f"{len(found)} {kind}" for kind, found in kinds.items())
    lengths = [text.tokens for text in texts]
    print(f"{len(texts)} texts ({counts}), {min(lengths):,} to {max(lengths):,} prompt tokens.")
    header = ("step", "heads that move less", "head gain, log2", "final gain, log2")
    header = (*header, "final L1 lower", "KL lower")
    ladder = ("rung", "heads below the base", "mean head L1 / base", "final L1 / base")
    for base in bases:
        for budget in budgets:
            where = f"{base}, budget {budget}"
            table(f"{where}: what each change does", header, step_rows(texts, base, budget))
            table(f"{where}: the ladder", ladder, rung_rows(texts, base, budget))
    for kind, found in kinds.items():
        rows = step_rows(found, bases[0], budgets[0])
        table(f"{bases[0]}, budget {budgets[0]}, {kind} only", header, rows)


def main() -> None:
    """Measure all prompts of a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=Path, help="JSON Lines file")
    parser.add_argument("--base", action="append", help="method; default snapkv and adakv")
    parser.add_argument("--budget", action="append", help="default 10% and 20%")
    options = parser.parse_args()
    bases, budgets = options.base or ["snapkv", "adakv"], options.budget or ["10%", "20%"]
    loaded = load_model(DEFAULT_MODEL, report=lambda _: None)
    lines = options.prompts.read_text(encoding="utf-8").splitlines()
    texts = []
    for number, line in enumerate(lines, start=1):
        texts.append(measure(loaded, json.loads(line), bases, budgets))
        print(f"{number} of {len(lines)}", file=sys.stderr, flush=True)
    report(texts, bases, budgets)


if __name__ == "__main__":
    main()
