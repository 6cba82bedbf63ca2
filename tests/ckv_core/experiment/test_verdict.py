"""The verdict on one sample, at one budget and at several: its sentences over every outcome."""

from dataclasses import replace

import numpy as np
import pytest

from ckv_core.base.percent import percent
from ckv_core.experiment.next_step import next_of_run
from ckv_core.experiment.sentences import counted, listed, spread
from ckv_core.experiment.sweep import curves, nobody_answers, savings
from ckv_core.experiment.verdict import verdict_of
from ckv_core.records.events import RunResult
from ckv_core.records.outcomes import cut_note, outcome_word
from ckv_core.records.records import VariantResult
from tests.factories.runs import array, measured, receipt, run_of, variant

PRINTED = "snapkv+critical:stage2=raw"
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
        outcome: answered, missed or cut; empty without an expected answer.
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
        answer_found=None if not outcome else outcome == "answered",
    )


def told(result: RunResult) -> list[str]:
    """All sentences."""
    verdict = verdict_of(result)
    groups = [group.sentence for group in verdict.groups]
    return [verdict.headline, *groups, *verdict.findings, *verdict.cautions]


FULL = ran("full", "answered")
PLACE = "40 % of the KV cache (0.4 of 1.0 KiB)"
SHARE = PLACE.partition(" (")[0]
ONE_PROMPT = "One text only: run more samples before you decide."
SAME = "All methods do equally here. Try a {} budget to see a difference."
BASELINE = "Baseline: Full cache (answered)."
CASES = {
    "some keep it": (
        (FULL, ran("snapkv", "answered"), ran("adakv", "missed", at=3)),
        f"1 of 2 methods still answers correctly with {PLACE}.",
        BASELINE,
        "Answered: SnapKV (same text).",
        "Missed: AdaKV (first differs at token 4).",
    ),
    "all keep it, in other words": (
        (FULL, ran("snapkv", "answered", at=1), ran("adakv", "answered", at=2)),
        f"Both methods still answer correctly with {PLACE}.",
        BASELINE,
        "Answered: AdaKV (first differs at token 3); SnapKV (first differs at token 2).",
        SAME.format("smaller"),
    ),
    "none keeps it": (
        (FULL, ran("snapkv", "missed", at=0), ran("adakv", "missed", at=4)),
        f"Neither method answers correctly with {PLACE}.",
        BASELINE,
        "Missed: AdaKV (first differs at token 5); SnapKV (first differs at token 1).",
        SAME.format("larger"),
    ),
    "one variant": (
        (FULL, ran("snapkv", "missed", at=0)),
        f"SnapKV misses the expected answer with {PLACE}.",
        BASELINE,
        "Missed: SnapKV (first differs at token 1).",
    ),
    "one cut": (
        (FULL, ran("snapkv", "cut", at=0)),
        f"At {PLACE}, SnapKV was cut before an answer.",
        BASELINE,
        "Cut: SnapKV (first differs at token 1).",
        (
            "1 of 2 texts was cut at 5 new tokens before an answer: neither right nor wrong. "
            "Raise New tokens (max_new_tokens)."
        ),
    ),
    "several cut": (
        (
            FULL,
            ran("snapkv", "cut", at=0),
            ran("adakv", "cut", at=0),
            ran("pyramidkv", "answered", budget=5),
        ),
        (
            "At 40 to 50 % of the KV cache (0.4 to 0.5 of 1.0 KiB), 1 of 3 methods still answers "
            "correctly, 2 were cut."
        ),
        BASELINE,
        "Answered: PyramidKV (same text).",
        "Cut: SnapKV (first differs at token 1); AdaKV (first differs at token 1).",
        (
            "2 of 4 texts were cut at 5 new tokens before an answer: neither right nor "
            "wrong. Raise New tokens (max_new_tokens)."
        ),
    ),
    "no reference answer": (
        (ran("full"), ran("snapkv"), ran("adakv", at=2)),
        f"At {PLACE}, 1 of 2 methods writes the same text as the full cache.",
        "Same text: SnapKV.",
        "Different output: AdaKV (first differs at token 3).",
        "No expected answer was given, so a different output need not be a worse one.",
    ),
    "no reference answer, and all cut": (
        [
            replace(one, stopped="length")
            for one in (ran("full"), ran("snapkv"), ran("adakv", at=2))
        ],
        (
            f"At {PLACE}, 1 of 2 methods writes the same text as the full cache up to the limit of "
            "new tokens."
        ),
        "Same up to the limit: SnapKV.",
        "Different output: AdaKV (first differs at token 3).",
        "No expected answer was given, so a different output need not be a worse one.",
        (
            "3 of 3 texts were cut at 5 new tokens: what would follow is unknown. Raise New tokens "
            "(max_new_tokens)."
        ),
    ),
    "the full cache misses it": (
        (ran("full", "missed"), ran("snapkv", "missed"), ran("adakv", "answered", at=2)),
        (
            "The model gets this wrong even with the full cache. 1 of 2 methods answers "
            f"correctly with {SHARE}."
        ),
        "Baseline: Full cache (missed).",
        "Answered: AdaKV (first differs at token 3).",
        "Missed: SnapKV (same text).",
        "Check the expected answer; else use a larger model or an easier question.",
    ),
    "all miss it, the full cache too": (
        (ran("full", "missed"), ran("snapkv", "missed"), ran("adakv", "missed", at=2)),
        (
            "The model gets this wrong even with the full cache. Neither method answers correctly "
            f"with {SHARE}."
        ),
        "Baseline: Full cache (missed).",
        "Missed: SnapKV (same text); AdaKV (first differs at token 3).",
        "Check the expected answer; else use a larger model or an easier question.",
    ),
    "the full cache is cut": (
        (ran("full", "cut"), ran("snapkv", "cut")),
        (
            "The full cache's own text was cut before an answer. "
            f"At {SHARE}, SnapKV was cut before an answer."
        ),
        "Baseline: Full cache (cut).",
        "Cut: SnapKV (same text).",
        (
            "2 of 2 texts were cut at 5 new tokens before an answer: neither right nor "
            "wrong. Raise New tokens (max_new_tokens)."
        ),
    ),
    "no full cache": (
        (ran("snapkv", "answered", at=1), ran("adakv", "missed", at=2)),
        f"1 of 2 methods answers correctly with {PLACE}.",
        "Answered: SnapKV (first differs at token 2).",
        "Missed: AdaKV (first differs at token 3).",
    ),
    "nothing evicted": (
        (FULL, ran("snapkv", "answered", budget=10)),
        "SnapKV still answers correctly with 100 % of the KV cache (1.0 of 1.0 KiB).",
        BASELINE,
        "Answered: SnapKV (same text).",
        "Nothing was evicted: the budget holds the whole prompt.",
    ),
    "ended early": (
        (FULL, ran("snapkv", "answered"), replace(ran("adakv"), stopped=None, agreement=None)),
        f"SnapKV still answers correctly with {PLACE}.",
        BASELINE,
        "Answered: SnapKV (same text).",
        "1 method is left out: the run ended before it did.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_came_out_in_sentences(case):
    variants, *sentences = CASES[case]
    assert told(run_of(*variants)) == [*sentences, ONE_PROMPT]


PAIRS = "In {}, the one that answers correctly had the lower perturbation (mean head L1)."
MECHANISM = {
    "the one that keeps it moves heads less in one of two": (
        (
            ran("snapkv", "answered", head_l1=3),
            ran("adakv", "missed", at=1, head_l1=2),
            ran("pyramidkv", "answered", head_l1=1),
            ran("streaming_llm", "missed", at=1, head_l1=9, budget=5),
        ),
        PAIRS.format("1 of 2 pairs of methods"),
    ),
    "less moved, and lost": (
        (ran("snapkv", "answered", head_l1=2), ran(PRINTED, "missed", at=3, better=0.9)),
        PAIRS.format("0 of 1 pair of methods"),
    ),
    "both kept: nothing to compare": (
        [ran("snapkv", "answered"), ran(PRINTED, "answered", better=0.9)],
    ),
    "cut: neither": ([ran("snapkv", "cut", at=1), ran(PRINTED, "missed", at=1, better=0.9)],),
}


@pytest.mark.parametrize("case", MECHANISM)
def test_perturbation_stands_beside_the_outcome(case):
    variants, *sentences = MECHANISM[case]
    assert list(verdict_of(run_of(FULL, *variants)).findings) == sentences
    missed = run_of(ran("full", "missed"), *variants)
    assert verdict_of(missed).findings == ()  # there is no answer to keep


def test_only_a_cut_text_is_said_to_repeat_itself():
    looping = [
        replace(ran(spec, outcome, at=1), token_ids=(7,) * 40, stopped="length")
        for spec, outcome in (("snapkv", "cut"), ("adakv", "answered"))
    ]
    groups = verdict_of(run_of(FULL, *looping)).groups
    notes = {member.index: member.note for group in groups for member in group.members}
    assert notes[1] == "repeats itself, first differs at token 2"
    assert notes[2] == "first differs at token 2"
    assert [outcome_word(each) for each in looping] == ["cut, repeats itself", "answered"]
    assert cut_note(looping[:1]).endswith("It repeats itself, so a higher limit would not help.")


def test_nothing_generated_has_no_verdict():
    assert verdict_of(run_of()) is None
    assert verdict_of(run_of(replace(FULL, stopped=None))) is None


def test_what_cannot_be_judged_says_what_is_missing():
    assert told(run_of(FULL)) == [
        "Only the full cache ran and answers correctly: add a method to compare."
    ]
    assert told(run_of(replace(ran("snapkv"), agreement=None))) == [
        "Without the full cache and without an expected answer this run does not say what eviction "
        "changed: add one of the two."
    ]


def test_words():
    lists = ["A", "A and B", "A, B and C", "A, B and 3 more"]
    assert [listed(list(names)) for names in ("A", "AB", "ABC", "ABCDE")] == lists
    assert [counted(n, "point") for n in (1, 2, 1_200)] == ["1 point", "2 points", "1,200 points"]
    shares = ["0 %", "0.4 %", "40 %", "99.6 %", "100 %"]
    assert [percent(share) for share in (0, 0.004, 0.4, 0.996, 1)] == shares
    assert [spread("40 %", "40 %"), spread("38 %", "41 %")] == ["40 %", "38 to 41 %"]


# --- several budgets ------------------------------------------------------------------------

ENDS = {"y": ("eos", True), "n": ("eos", False), "c": ("length", False), "-": ("eos", None)}
LEAST, MOST = "2 tokens (100.0 of 1000.0 MiB)", "8 tokens (400.0 of 1000.0 MiB)"
L1_OF_ONE = (
    "In 1 of 1 pair of methods, the one that answers correctly had the lower perturbation "
    "(mean head L1)."
)


def point(
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
    held = {"cache_bytes": 50 * budget * 2**20, "full_cache_bytes": 1000 * 2**20}
    return replace(
        made,
        receipt=replace(made.receipt, budget_tokens=budget, **held),
        params=made.params | {"budget": budget},
    )


def swept(full: str, lines: dict[str, str], **more: bool) -> RunResult:
    """A sweep; each line has one letter per budget of 2, 4 and 8."""
    points = [
        point(spec, end, budget, head_l1=1 + at, **more)
        for at, (spec, ends) in enumerate(lines.items())
        for budget, end in zip((2, 4, 8), ends, strict=True)
    ]
    return replace(run_of(point("full", full), *points), kind="sweep")


SWEEPS = {
    "each from another budget on": (
        swept("y", {"snapkv": "nyy", "adakv": "nny", "knorm": "nnn", "tova": "nnn"}),
        "The smallest budget that still answers: 4 tokens (200.0 of 1000.0 MiB), with SnapKV.",
        "Of the others: 8 tokens with AdaKV; none with Knorm and TOVA.",
        (
            "In 7 of 7 pairs of methods, the one that answers correctly had the lower "
            "perturbation (mean head L1)."
        ),
    ),
    "a lower one answers and a higher one does not": (
        swept("y", {"snapkv": "nyn", "adakv": "nnn"}),
        "The smallest budget that still answers: 4 tokens (200.0 of 1000.0 MiB), with SnapKV.",
        "Of the others: none with AdaKV.",
        L1_OF_ONE,
    ),
    "none": (
        swept("y", {"snapkv": "nnn", "adakv": "nnc"}),
        f"No method still answers at a budget of up to {MOST}: SnapKV and AdaKV.",
        (
            "1 of 7 texts was cut at 0 new tokens before an answer: neither right nor wrong. "
            "Raise New tokens (max_new_tokens)."
        ),
    ),
    "all": (
        swept("y", {"snapkv": "yyy", "adakv": "yyy"}),
        f"The smallest budget that still answers: {LEAST}, with SnapKV and AdaKV.",
    ),
    "cut points": (
        swept("y", {"snapkv": "ccc"}),
        "Cut before an answer, at every budget: SnapKV.",
        (
            "3 of 4 texts were cut at 0 new tokens before an answer: neither right nor "
            "wrong. Raise New tokens (max_new_tokens)."
        ),
    ),
    "no reference answer": (
        swept("-", {"snapkv": "---"}),
        f"The smallest budget that gives the full cache's text: {LEAST}, with SnapKV.",
        "No expected answer was given, so a different output need not be a worse one.",
    ),
    "the full cache misses it": (
        swept("n", {"snapkv": "nnn"}, same=False),
        (
            "The model gets this wrong even with the full cache. No method still answers at a "
            f"budget of up to {MOST}: SnapKV."
        ),
        "Check the expected answer; else use a larger model or an easier question.",
    ),
}


@pytest.mark.parametrize("case", SWEEPS)
def test_what_came_out_of_a_sweep_in_sentences(case):
    result, *sentences = SWEEPS[case]
    headline, *others = told(result)
    assert [headline, *verdict_of(result).causes, *others] == [*sentences, ONE_PROMPT]


def one_budget(states: str, full: str = "y", window: int = 1) -> RunResult:
    specs = zip((f"snapkv:window={window}", "knorm"), states, strict=True)
    return run_of(point("full", full), *(point(spec, end) for spec, end in specs))


@pytest.mark.parametrize(
    ("result", "step"),
    [
        (one_budget("yn"), "test SnapKV window 1 on more samples: ckv run FILE.yaml"),
        (one_budget("yy"), "run it again with --budget 2,3,5,6."),
        (one_budget("yy", window=4), "run it again with --budget 5,6."),  # others hold no window
        (one_budget("nn"), "run it again with --budget 10,11,13,14."),
        (one_budget("nn", full="n"), ""),
        (one_budget("yc"), ""),
        (swept("y", {"snapkv:window=1": "nny"}), "run it again with --budget 5,6,7."),
        (swept("n", {"snapkv": "nnn"}), ""),
        (run_of(point("full", "y")), ""),
    ],
)
def test_the_next_step_follows_from_the_outcome(result, step):
    result = replace(result, prompt=replace(result.prompt, compressed_tokens=500))
    found = next_of_run(result)
    assert found.startswith(step)
    assert bool(found) == bool(step)


def test_a_sweep_that_generates_nothing_says_that_it_does_not_know():
    silent = swept("y", {"snapkv": "yyy"})
    silent.variants[:] = [replace(v, stopped=None) for v in silent.variants]
    headline, caution = told(silent)
    assert headline.startswith("This run generated no text")
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
    assert texts == [
        ["2 tokens or less", "2 tokens", "4 tokens"],
        ["2 tokens or less", "2 tokens, 50 % less", "4 tokens, 50 % less"],
    ]
