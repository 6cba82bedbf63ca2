"""Finished sweeps whose figures are made up, so that what is read off them is known."""

from dataclasses import replace

import numpy as np

from ckv_core.request.grid import SweepGrid
from ckv_core.request.variants import VariantSpec
from ckv_core.results.events import RunResult
from ckv_core.results.records import PromptInfo, VariantResult
from tests.ckv_core.analysis.test_sweep_curves import model, point


def measured(text: str) -> VariantResult:
    """KV head 0 likes alpha 0, KV head 1 likes 0.5; CriticalKV halves everything."""
    spec = VariantSpec.parse(text)
    budget, alpha = int(spec.budget.amount), spec.params.get("alpha")
    misses = [0.0] * 4 if alpha is None else [alpha, alpha, abs(0.5 - alpha), abs(0.5 - alpha)]
    scale = 64 / budget / (2 if spec.critical else 1)
    sigma = np.array([[0.4, 0.6, 0.7, 0.8], [np.nan] * 4], np.float32)
    return replace(
        point(text, [scale * (1 + miss) for miss in misses]),
        agreement=min(budget / 600, 1),
        answer_found=budget > 300,
        answer_scores={"exact_match": 0.0, "token_f1": 0.5, "edit_similarity": 0.25},
        analysis={"sigma_stage1": sigma},
    )


def full() -> VariantResult:
    return VariantResult(spec="full", label="Full cache", method="full", critical=False)


def sweep_of(grid: SweepGrid) -> RunResult:
    prompt = PromptInfo(
        scenario="regular",
        token_ids=(1, 2, 3),
        compressed_tokens=3,
        pieces=("w1 ", "w2 ", "w3 "),
        context_tokens=(0, 3),
    )
    points = [measured(text) for text in grid.variants() if text != "full"]
    return RunResult(
        model=model(2), prompt=prompt, variants=[full(), *points], kind="sweep", finished=True
    )


def sweep() -> RunResult:
    return sweep_of(
        SweepGrid(
            methods=("snapkv", "snapkv+critical", "adakv"),
            budgets=("64", "128", "512"),
            alphas=("0", "0.25", "0.5"),
        )
    )
