"""Samples and results of made-up studies; only the scores are chosen."""

from typing import Any

from ckv_core.experiment.study import Sample, SampleResult


def plain_samples(count: int) -> list[Sample]:
    """`s0`, `s1` and so on."""
    return [Sample(id=f"s{at}", context="c", question="q", answers=("a",)) for at in range(count)]


def scored(
    sample: str, variant: str, budget: str | None, score: float | None, **more: Any
) -> SampleResult:
    """A result that is there."""
    return SampleResult(
        sample=sample, variant=variant, budget=budget, state="done", score=score, **more
    )
