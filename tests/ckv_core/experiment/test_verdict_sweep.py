"""The verdict on a sweep: the smallest budget that still answers, and what contradicts it."""

from dataclasses import replace

import pytest

from ckv_core.experiment.savings import savings
from ckv_core.experiment.sweep import alpha_optima, curves, nobody_answers
from ckv_core.experiment.verdict import alpha_outcome, sweep_verdict
from ckv_core.records.events import RunResult
from ckv_core.records.records import VariantResult
from tests.factories.runs import array, measured, run_of, variant

ENDS = {"y": ("eos", True), "n": ("eos", False), "c": ("length", False), "-": ("eos", None)}
WORDS = {
    4: "4 entries per KV head (50 % of the prompt)",
    8: "8 entries per KV head (100 % of the prompt)",
}
ONE_PROMPT = "One prompt only, and only the budgets tried: run a study before you decide."
BASELINE = "Baseline: Full cache (answered)."


def ran(
    spec: str, end: str, budget: int = 8, *, head_l1: float = 1.0, same: bool = True
) -> VariantResult:
    stopped, found = ENDS[end]
    made = variant(
        spec if spec == "full" else f"{spec}{':,'[':' in spec]}budget=64",
        measured(array([head_l1] * 4), 1, 1),
        stopped=stopped,
        answer_found=found,
        agreement=1.0 if same else 0.5,
        first_difference=None if same else 3,
    )
    receipt = replace(made.receipt, budget_tokens=budget)
    return replace(made, receipt=receipt, params=made.params | {"budget": budget})


def swept(full: str, lines: dict[str, str], **more: bool) -> RunResult:
    """A sweep; each line has one letter per budget of 2, 4 and 8."""
    points = [
        ran(spec, end, budget, head_l1=1 + at, **more)
        for at, (spec, ends) in enumerate(lines.items())
        for budget, end in zip((2, 4, 8), ends, strict=True)
    ]
    return replace(run_of(ran("full", full), *points), kind="sweep")


def told(result: RunResult) -> list[str]:
    verdict = sweep_verdict(result)
    groups = [group.sentence for group in verdict.groups]
    return [verdict.headline, *groups, *verdict.findings, *verdict.cautions]


CASES = {
    "each from another budget on": (
        swept("y", {"snapkv": "nyy", "adakv": "nny"}),
        f"The smallest budget that still answers correctly is {WORDS[4]}, by SnapKV.",
        BASELINE,
        f"From {WORDS[4]}: SnapKV.",
        f"From {WORDS[8]}: AdaKV.",
        (
            "In 1 of 1 head-to-head comparison the method that answers correctly had the "
            "lower perturbation."
        ),
    ),
    "all from one budget on": (
        swept("y", {"snapkv": "nyy", "adakv": "nyy"}),
        f"The smallest budget that still answers correctly is {WORDS[4]}, by all.",
        BASELINE,
        f"From {WORDS[4]}: SnapKV; AdaKV.",
    ),
    "a lower one answers and a higher one does not": (
        swept("y", {"snapkv": "nyn", "adakv": "nnn"}),
        f"The smallest budget that still answers correctly is {WORDS[4]}, by SnapKV.",
        BASELINE,
        f"From {WORDS[4]}: SnapKV (not at 8).",
        f"Not even with {WORDS[8]}: AdaKV.",
        "SnapKV answers correctly at 4 and not at 8.",
        (
            "In 1 of 1 head-to-head comparison the method that answers correctly had the "
            "lower perturbation."
        ),
    ),
    "none": (
        swept("y", {"snapkv": "nnn"}),
        f"No point answers correctly, up to {WORDS[8]}.",
        BASELINE,
        f"Not even with {WORDS[8]}: SnapKV.",
    ),
    "all": (
        swept("y", {"snapkv": "yyy"}),
        ("Every point answers correctly, down to 2 entries per KV head (25 % of the prompt)."),
        BASELINE,
        "From 2 entries per KV head (25 % of the prompt): SnapKV.",
    ),
    "cut points": (
        swept("y", {"snapkv": "ccc", "adakv": "cyy"}),
        f"The smallest budget that still answers correctly is {WORDS[4]}, by AdaKV.",
        BASELINE,
        f"From {WORDS[4]}: AdaKV.",
        f"Not even with {WORDS[8]}: SnapKV (cut each time).",
        (
            "4 of 7 texts were cut at 0 new tokens before an answer: neither right nor "
            "wrong. Raise New tokens (max_new_tokens)."
        ),
    ),
    "no reference answer": (
        swept("-", {"snapkv": "---"}),
        (
            "Every point writes the full cache's text, down to 2 entries per KV head (25 % "
            "of the prompt)."
        ),
        "From 2 entries per KV head (25 % of the prompt): SnapKV.",
        "No expected answer was given, so a different output need not be a worse one.",
    ),
    "the full cache misses it": (
        swept("n", {"snapkv": "nnn"}, same=False),
        (
            f"The model gets this wrong even with the full cache. No point answers correctly, "
            f"up to {WORDS[8]}."
        ),
        "Baseline: Full cache (missed).",
        f"Not even with {WORDS[8]}: SnapKV.",
        "Use a larger model or an easier question.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_came_out_of_a_sweep_in_sentences(case):
    result, *sentences = CASES[case]
    assert told(result) == [*sentences, ONE_PROMPT]


def test_a_sweep_that_generates_nothing_says_that_it_does_not_know():
    silent = swept("y", {"snapkv": "yyy"})
    silent.variants[:] = [replace(v, stopped=None) for v in silent.variants]
    headline, caution = told(silent)
    assert headline.startswith("This sweep generated no text")
    assert caution == "Generate text to see the smallest budget that still answers."


def test_no_saving_is_said_where_no_point_answers():
    silent, heard = (swept("y", {"snapkv": end * 3, "adakv": end * 3}) for end in "ny")
    for result in (silent, heard):
        for at, each in enumerate(result.variants[1:], start=1):
            heads = array([(2 if each.method == "adakv" else 1) / each.receipt.budget_tokens] * 4)
            result.variants[at] = replace(each, perturbation=measured(heads, 1, 1))
    texts = []
    for result in (silent, heard):
        target, line = reversed(curves(result))
        found = savings(line, target, "head", is_moot=nobody_answers(result))
        texts.append([saving.text for saving in found])
    assert (nobody_answers(silent), nobody_answers(heard)) == (True, False)
    assert texts == [["2 or less", "2", "4"], ["2 or less", "2, 50 % less", "4, 50 % less"]]


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("yyn", "answers; so does 0.25"),
        ("ynn", "answers; no other does"),
        ("nyy", "does not answer; 0.25 and 0.5 do"),
        ("nnn", "does not answer; no other does"),
        ("cny", "cut before an answer; 0.5 does"),
    ],
)
def test_the_alpha_of_least_perturbation_says_what_it_does_to_the_answer(ends, said):
    points = [
        ran(f"snapkv+critical:alpha={alpha}", end, head_l1=1 + at)
        for at, (alpha, end) in enumerate(zip(("0", "0.25", "0.5"), ends, strict=True))
    ]
    result = replace(run_of(ran("full", "y"), *points), kind="sweep")
    (optimum,) = alpha_optima(result)
    assert alpha_outcome(result, optimum) == said
