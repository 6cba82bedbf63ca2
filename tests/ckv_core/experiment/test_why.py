"""Lost answers: the sentence on why, the negatives, and what is written task by task."""

from dataclasses import replace

import numpy as np
import pytest

from ckv_core.experiment.behaviour import behaviours, repetition
from ckv_core.experiment.negatives import negatives, negatives_table
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.experiment.why import Attempt, Why, why_of
from ckv_core.records.events import RunResult
from ckv_core.records.records import RetainedSet, VariantResult
from tests.factories.app import STUDY, study_results, study_samples


def attempts(**outcomes: str) -> list[Attempt]:
    names = {"layers": "layers 0-4", "layer": "layer 3", "head": "KV head 1", "near": "neighbours"}
    return [
        Attempt("all heads", 12, outcomes.get("all", "answered"), ""),
        *(Attempt(name, 3, outcomes.get(key, "missed"), "") for key, name in names.items()),
        *(Attempt(f"random entries {n}", 12, outcomes.get(f"r{n}", "missed"), "") for n in "123"),
    ]


def sentence(full: str = "answered", own: str = "missed", **outcomes: str) -> str:
    return Why("SnapKV", full, own, attempts(**outcomes)).sentence


def test_the_sentence_has_the_control_beside_what_brings_the_answer_back():
    said = sentence(layer="answered")
    assert "(12 evicted entries, same budget) brings the answer back" in said
    assert "as many random ones do in 0 of 3 draws" in said
    assert "no band of layers (0 of 1), layer 3 (1 of 1), no KV head (0 of 1)" in said
    assert "the neighbours that pooling keeps (no)" in said
    assert said.endswith("for this text and this model alone.")


def test_nothing_is_claimed_that_the_rows_do_not_show():
    assert "does not bring the answer back" in (said := sentence(all="missed", layer="answered"))
    assert "not shown" in said
    assert "not shown" in sentence(r1="answered", r2="answered")
    assert "not shown" not in sentence(r1="answered")
    assert "nothing was lost" in sentence(full="missed")
    assert "nothing to bring back" in sentence(own="answered")
    held = Why("SnapKV", "answered", "missed", [])
    assert held.sentence == "SnapKV holds all of the evidence and loses the answer all the same."


def test_what_was_put_back_is_counted_from_the_kept_sets():
    own, row = np.zeros((2, 2, 1, 9), np.bool_)
    own[:, :, :3] = row[:, :, 2:5] = True

    def variant(label: str, text: str, kept: np.ndarray | None) -> VariantResult:
        retained = None if kept is None else RetainedSet.from_mask(kept)
        return VariantResult(
            spec="own", label=label, method="own", critical=False, text=text, retained=retained
        )

    result = RunResult()
    rows = ("Full", "a", None), ("S", "b", own), ("all heads", "c", row)
    result.variants = [variant(*each) for each in rows]
    (attempt,) = why_of(result).attempts
    assert (attempt.put_back, attempt.text) == (4, "c")
    assert why_of(result).table.items == [attempt]


def test_a_negative_is_right_with_the_full_cache_and_wrong_with_a_method():
    samples = [Sample(id=name, context="c", question="q", answers=("a",)) for name in "abc"]

    def result(sample: str, variant: str, budget: str | None, score: float | None) -> SampleResult:
        return SampleResult(
            sample=sample,
            variant=variant,
            budget=budget,
            state="done",
            score=score,
            stopped="eos" if score is not None else "length",
        )

    results = [
        *(result(name, "full", None, score) for name, score in zip("abc", (1, 1, 0), strict=True)),
        result("a", "snapkv", "10%", 0),
        result("a", "snapkv", "20%", 1),
        result("b", "snapkv", "10%", None),  # cut: neither right nor wrong
        result("c", "snapkv", "10%", 0),
    ]
    (found,) = negatives(Reading(STUDY, samples, results))
    assert (found.sample.id, found.point.spec, found.kept) == ("a", "snapkv:budget=10%", ("20%",))


@pytest.mark.parametrize(
    ("text", "share"),
    [("", 0), ("one two three", 0), ("a b c d", 0), ("a b c d A B c d", 0.2), ("so " * 9, 5 / 6)],
)
def test_repetition_is_the_share_of_groups_of_words_that_came_before(text, share):
    assert repetition(text) == pytest.approx(share)


def test_score_length_and_flips_are_told_by_task():
    samples = study_samples()
    reading = Reading(STUDY, samples, study_results(samples))
    rows = behaviours(reading)
    tasks = {each.tags["task"] for each in samples}
    assert {row.task for row in rows} == tasks
    assert len(rows) == len(tasks) * len(STUDY.points())
    again = replace(rows[0].results[0], text="a b c d A B c d")
    assert replace(rows[0], results=[again]).repeated == pytest.approx(20)
    flips = negatives(reading)
    assert sum(row.lost for row in rows) == len(flips) > 0
    assert all(row.against_full == 100 for row in rows if row.name == "Full cache")
    shown = negatives_table(reading, lambda lost: f"/?sample={lost.sample.id}")
    assert shown.columns[0].cell(flips[0]).href == f"/?sample={flips[0].sample.id}"
