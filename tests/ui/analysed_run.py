"""A made-up run with every part of the diagnostics."""

import dataclasses

import numpy as np

from ckv_core.results.records import Candidate, FollowUp, ForcedStep
from tests.ui.page_fakes import LAYERS, QUERY_HEADS, done_result

SHAPE = (LAYERS, QUERY_HEADS)


def bounds(head_l1: np.ndarray) -> dict[str, np.ndarray]:
    sigma = np.full(SHAPE, 0.9, np.float32)
    sigma[0, :2] = 0.4
    return {
        "sigma_stage1": sigma,
        "sigma_oracle": sigma + np.float32(0.05),
        "sigma_kept": sigma + np.float32(0.08),
        "value_mass": head_l1 * 5 + 1,
        "theta": head_l1 * 2 + 1,
        "theta_hat": head_l1 * 3 + 1,
        "theta_relaxed": head_l1 * 4 + 1,
        "oracle_attention_l1": head_l1 / 2,
        "hidden_norm_l1": np.array([10, 0, 10], np.float32),
        "normed_l1": np.array([0.5], np.float32),
        "forced_top1": np.array([1, 0], np.float32),
        "forced_kl": np.array([0.001, 2.0], np.float32),
        "forced_rank": np.array([1, 7], np.float32),
    }


def analysed():
    """A finished run whose evicting variants have every part of the diagnostics."""
    result = done_result()
    other = (Candidate(2, "<b>", 0.5),)
    steps = tuple(ForcedStep((Candidate(1, text, 0.9),), other) for text in ("one", " two"))
    answer = FollowUp(
        question="And then?",
        text="x",
        token_ids=(1,),
        token_texts=("x",),
        stopped="eos",
        agreement=0.5,
        first_difference=0,
    )
    result.variants = [
        dataclasses.replace(
            variant,
            analysis={} if variant.method == "full" else bounds(variant.perturbation.head_l1),
            forced_steps=() if variant.method == "full" else steps,
            follow_ups=(answer,),
            answer_scores={} if variant.method == "full" else {"exact_match": 1.0},
        )
        for variant in result.variants
    ]
    return result
