"""The verdict on a comparison: its sentences over every kind of outcome."""

from dataclasses import replace

import numpy as np
import pytest

from ckv_core.analysis.verdict.base import counted, listed, percent, spread
from ckv_core.analysis.verdict.run import run_verdict
from ckv_core.results.records import VariantResult
from tests.factories.runs import measured, receipt, run_of, variant

PRINTED, POOLED = "snapkv+critical:stage2=raw", "snapkv+critical:stage2=pooled"
FULL_TEXT = ("The", " code", " is", " 58", "2917")


def ran(
    text: str,
    outcome: str = "",
    *,
    at: int | None = None,
    head_l1: float = 1.0,
    better: float | None = None,
    budget: int = 4,
) -> VariantResult:
    """A finished variant.

    Args:
        outcome: found, missing or cut; empty without a reference answer.
        at: first token that differs.
        better: share of heads below the base's.
    """
    is_full = text == "full"
    spec = text if is_full else f"{text}{':,'[':' in text]}budget=64"
    heads = np.full((1, 10), head_l1, np.float32)
    base = heads.copy()
    base[0, : round(10 * (better or 0))] += 1
    held = {"cache_bytes": 1000 if is_full else 100 * budget, "full_cache_bytes": 1000}
    return variant(
        spec,
        None if is_full else measured(heads, 0, base=None if better is None else base),
        receipt=receipt(budget, **held),
        text="".join(FULL_TEXT),
        token_ids=tuple(range(5)),
        stopped="length" if outcome == "cut" else "eos",
        agreement=1.0 if at is None else at / 5,
        first_difference=at,
        answer_found=None if not outcome else outcome == "found",
    )


def told(*variants: VariantResult) -> list[str]:
    """All sentences."""
    verdict = run_verdict(run_of(*variants))
    groups = [group.sentence for group in verdict.groups]
    return [verdict.headline, *groups, *verdict.findings, *verdict.cautions]


FULL = ran("full", "found")
PLACE = "with 4 of 8 entries per KV head (40 % of the bytes)"
ONE_PROMPT = "One prompt: another one may turn this around."
SAME = "The outcome is the same for all, so it ranks none; try a {} budget."
CASES = {
    "some keep it": (
        (FULL, ran("snapkv", "found"), ran("adakv", "missing", at=3)),
        f"1 of 2 variants still gives the full cache's answer {PLACE}.",
        "Answer kept: SnapKV (same text).",
        "Answer lost: AdaKV (from token 4 on).",
    ),
    "all keep it, in other words": (
        (FULL, ran("snapkv", "found", at=1), ran("adakv", "found", at=2)),
        f"Both variants still give the full cache's answer {PLACE}.",
        "Answer kept: AdaKV (other words from token 3 on); SnapKV (other words from token 2 on).",
        SAME.format("smaller"),
    ),
    "none keeps it": (
        (FULL, ran("snapkv", "missing", at=0), ran("adakv", "missing", at=4)),
        f"Neither variant gives the full cache's answer {PLACE}.",
        "Answer lost: AdaKV (from token 5 on); SnapKV (from token 1 on).",
        SAME.format("larger"),
    ),
    "one variant": (
        (FULL, ran("snapkv", "missing", at=0)),
        f"SnapKV no longer gives the full cache's answer {PLACE}.",
        "Answer lost: SnapKV (from token 1 on).",
    ),
    "one cut": (
        (FULL, ran("snapkv", "cut", at=0)),
        f"SnapKV was cut before an answer {PLACE}.",
        "Cut before an answer: SnapKV (from token 1 on).",
        "1 generation was cut at 5 new tokens before an answer: neither right nor wrong. "
        "Allow more new tokens.",
    ),
    "several cut": (
        (FULL, ran("snapkv", "cut", at=0), ran("adakv", "cut", at=0), ran("pyramidkv", "found")),
        f"1 of 3 variants still gives the full cache's answer {PLACE}.",
        "Answer kept: PyramidKV (same text).",
        "Cut before an answer: SnapKV (from token 1 on); AdaKV (from token 1 on).",
        "2 generations were cut at 5 new tokens before an answer: neither right nor wrong. "
        "Allow more new tokens.",
    ),
    "no reference answer": (
        (ran("full"), ran("snapkv"), ran("adakv", at=2)),
        f"1 of 2 variants still writes the full cache's text {PLACE}.",
        "Same text: SnapKV.",
        "Another text: AdaKV (from token 3 on).",
        "No reference answer was given, so another text is not known to be a worse one.",
    ),
    "the full cache misses it": (
        (ran("full", "missing"), ran("snapkv", "missing"), ran("adakv", "found", at=2)),
        f"1 of 2 variants still writes the full cache's text {PLACE}.",
        "Same text: SnapKV.",
        "Another text: AdaKV (from token 3 on).",
        "The full cache itself misses the reference answer, so no variant can lose it. AdaKV "
        "gives it, which one prompt cannot explain.",
    ),
    "the full cache is cut": (
        (ran("full", "cut"), ran("snapkv", "cut")),
        f"SnapKV still writes the full cache's text {PLACE}.",
        "Same text: SnapKV.",
        "The full cache itself was cut at 5 new tokens before the reference answer: allow "
        "more, or nothing can be said of answers.",
    ),
    "no full cache": (
        (ran("snapkv", "found", at=1), ran("adakv", "missing", at=2)),
        f"1 of 2 variants still gives the reference answer {PLACE}.",
        "Answer kept: SnapKV (other words from token 2 on).",
        "Answer lost: AdaKV (from token 3 on).",
    ),
    "nothing evicted": (
        (FULL, ran("snapkv", "found", budget=10)),
        "SnapKV still gives the full cache's answer with 8 of 8 entries per KV head "
        "(100 % of the bytes).",
        "Answer kept: SnapKV (same text).",
        "Nothing was evicted: the budget holds the whole prompt.",
    ),
    "ended early": (
        (FULL, ran("snapkv", "found"), replace(ran("adakv"), stopped=None, agreement=None)),
        f"SnapKV still gives the full cache's answer {PLACE}.",
        "Answer kept: SnapKV (same text).",
        "1 variant is left out: the run ended before it did.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_came_out_in_sentences(case):
    variants, *sentences = CASES[case]
    assert told(*variants) == [*sentences, ONE_PROMPT]


MECHANISM = {
    "less moved, and lost": (
        (ran("snapkv", "found", head_l1=2), ran(PRINTED, "missing", at=3, better=0.9)),
        "Lower perturbation went against it here: whoever loses the answer moves heads less.",
        "CriticalKV, as printed moves 90 % of heads less than SnapKV, and loses the answer "
        "that SnapKV keeps.",
    ),
    "less moved, both lost": (
        (ran("snapkv", "missing", at=3), ran(PRINTED, "missing", at=3, better=0.9)),
        "CriticalKV, as printed moves 90 % of heads less than SnapKV, and loses the answer all "
        "the same.",
    ),
    "less moved, and kept": (
        (ran("snapkv", "missing", at=3, head_l1=2), ran(PRINTED, "found", better=0.9)),
        "Lower perturbation went with it here: whoever keeps the answer moves heads less.",
        "CriticalKV, as printed moves 90 % of heads less than SnapKV, and keeps the answer "
        "that SnapKV loses.",
    ),
    "more moved, and kept": (
        (ran("snapkv", "missing", at=3), ran(POOLED, "found", better=0.4, head_l1=2)),
        "Lower perturbation went against it here: whoever loses the answer moves heads less.",
        "CriticalKV, as the authors' code moves only 40 % of heads less than SnapKV, and still "
        "keeps the answer that SnapKV loses.",
    ),
    "both kept: perturbation decides nothing": (
        [ran("snapkv", "found"), ran(PRINTED, "found", better=0.9)],
    ),
    "cut: not told": ([ran("snapkv", "cut", at=1), ran(PRINTED, "cut", at=1, better=0.9)],),
    "the base is not in the run": ([ran(PRINTED, "missing", at=3, better=0.9)],),
    "neither with nor against": (
        (
            ran("snapkv", "found", head_l1=3),
            ran("adakv", "missing", at=1, head_l1=2),
            ran("pyramidkv", "found", head_l1=1),
        ),
        "Perturbation does not decide it here: AdaKV moves heads less than SnapKV, and loses "
        "the answer.",
    ),
    "two bases in one sentence": (
        (
            ran("snapkv", "found", head_l1=3),
            ran(PRINTED, "missing", at=3, better=0.9),
            ran("adakv", "found", head_l1=3),
            ran("adakv+critical:stage2=raw", "missing", at=3, better=0.8),
        ),
        "Lower perturbation went against it here: whoever loses the answer moves heads less.",
        "CriticalKV, as printed moves 80 to 90 % of heads less than SnapKV and AdaKV, and "
        "loses the answer that they keep.",
    ),
}


@pytest.mark.parametrize("case", MECHANISM)
def test_perturbation_is_told_beside_the_outcome(case):
    variants, *sentences = MECHANISM[case]
    assert list(run_verdict(run_of(FULL, *variants)).findings) == sentences


def test_sixteen_variants_stay_short():
    variants = [
        ran(
            f"snapkv:window={n}", "missing" if n % 2 else "found", at=n if n % 2 else None, budget=n
        )
        for n in range(1, 16)
    ]
    verdict = run_verdict(run_of(FULL, *variants))
    assert verdict.headline == (
        "7 of 15 variants still give the full cache's answer with 1 to 8 of 8 entries per KV head "
        "(10 to 150 % of the bytes)."
    )
    assert len(" ".join([verdict.headline, *verdict.findings, *verdict.cautions])) < 400
    assert [len(group.members) for group in verdict.groups] == [7, 8]


def test_nothing_generated_has_no_verdict():
    assert run_verdict(run_of()) is None
    assert run_verdict(run_of(replace(FULL, stopped=None))) is None


def test_what_cannot_be_judged_says_what_is_missing():
    assert told(FULL) == [
        "Only the full cache ran and gives the reference answer: add a method to compare."
    ]
    assert told(replace(ran("snapkv"), agreement=None)) == [
        "Without the full cache and without a reference answer this run does not say what eviction "
        "changed: add one of the two."
    ]


def test_words():
    lists = ["A", "A and B", "A, B and C", "A, B and 3 more"]
    assert [listed(list(names)) for names in ("A", "AB", "ABC", "ABCDE")] == lists
    assert [counted(n, "point") for n in (1, 2, 1_200)] == ["1 point", "2 points", "1,200 points"]
    shares = ["0 %", "0.4 %", "40 %", "99.6 %", "100 %"]
    assert [percent(share) for share in (0, 0.004, 0.4, 0.996, 1)] == shares
    assert [spread("40 %", "40 %"), spread("38 %", "41 %")] == ["40 %", "38 to 41 %"]
