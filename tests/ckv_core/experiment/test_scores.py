"""Scores against literal readings of LongBench's and RULER's definitions."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.errors import ConfigError
from ckv_core.experiment.scores import METRICS, is_before_answer, score
from ckv_core.experiment.study import Sample

WORD = st.sampled_from(["the", "a", "red", "Red.", "fox", "12", "7", "(so)", "an apple", "x=1"])
TEXT = st.lists(WORD, max_size=12).map(" ".join)
ANSWERS = st.lists(st.lists(WORD, min_size=1, max_size=4).map(" ".join), min_size=1, max_size=3)


def plain(text: str) -> list[str]:
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def literal_f1(text: str, answer: str) -> float:
    own, wanted = plain(text), plain(answer)
    rest, common = list(wanted), 0
    for word in own:
        if word in rest:
            rest.remove(word)
            common += 1
    if not common:
        return 0.0
    precision, recall = common / len(own), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def literal_common(own: list[str], wanted: list[str]) -> int:
    if not own or not wanted:
        return 0
    if own[0] == wanted[0]:
        return 1 + literal_common(own[1:], wanted[1:])
    return max(literal_common(own[1:], wanted), literal_common(own, wanted[1:]))


@given(text=TEXT, answers=ANSWERS)
def test_token_f1_is_the_best_answers(text, answers):
    wanted = max(literal_f1(text, answer) for answer in answers)
    assert METRICS["token_f1"](text, answers, ()) == pytest.approx(wanted, abs=1e-12)


@given(text=TEXT, answers=ANSWERS)
def test_string_match_is_the_share_of_answers_found(text, answers):
    found = [answer.lower() in text.lower() for answer in answers]
    assert METRICS["string_match"](text, answers, ()) == sum(found) / len(found)
    assert METRICS["string_match_part"](text, answers, ()) == float(any(found))


def test_rouge_l_union_is_the_packages_that_longbench_uses():
    """Values of rouge 1.0.1, `get_scores(.., avg=True)["rouge-l"]["f"]`."""
    known = (
        (
            "The cat sat on the mat. The dog ran on.",
            "A dog ran. The cat sat, on a mat.",
            0.705882348,
        ),
        ("the the cat", "the cat the dog", 0.399999995),
        ("x. ", "x y. z", 0.399999995),
        ("", "x", 0.0),
    )
    for text, answer, wanted in known:
        assert METRICS["rouge_l_union"](text, [answer], ()) == pytest.approx(wanted, abs=1e-9)


@given(text=st.lists(WORD, max_size=6).map(" ".join), answers=ANSWERS)
def test_rouge_l_is_f1_of_the_longest_common_subsequence(text, answers):
    def one(answer: str) -> float:
        own, wanted = (re.findall(r"[a-z0-9]+", each.lower()) for each in (text, answer))
        common = literal_common(own, wanted)
        return 2 * common / (len(own) + len(wanted)) if common else 0.0

    assert METRICS["rouge_l"](text, answers, ()) == pytest.approx(max(map(one, answers)))


@given(text=TEXT, answers=ANSWERS, metric=st.sampled_from(sorted({*METRICS} - {"constraints"})))
def test_every_score_is_from_0_to_1(text, answers, metric):
    value = METRICS[metric](text, answers, tuple(answers))
    assert 0 <= value <= 1


@pytest.mark.parametrize(
    ("metric", "text", "answers", "choices", "value"),
    [
        ("retrieval", "Paragraph 7 or 12, I think 7", ["Paragraph 7"], (), 2 / 3),
        ("retrieval", "the first one", ["Paragraph 1"], (), 0.0),
        ("count", "There are 4, no 5", ["5"], (), 0.5),
        ("classification", "Food or City", ["Food"], ("Food", "City"), 0.5),
        ("classification", "Other number", ["Other number"], ("number", "Other number"), 1.0),
        ("classification", "Sea", ["Food"], ("Food", "City"), 0.0),
        ("code_similarity", "# no\nreturn x\nmore", ["return x"], (), 1.0),
        ("code_similarity", "```", ["return x"], (), 0.0),
        ("edit_similarity", "Red  Fox", ["red fox"], (), 1.0),
        ("exact_match", "The red fox.", ["a fox", "Red fox"], (), 1.0),
    ],
)
def test_scores_by_hand(metric, text, answers, choices, value):
    assert METRICS[metric](text, answers, choices) == pytest.approx(value)


@pytest.mark.parametrize(
    ("metric", "text", "value", "is_before"),
    [
        ("code_similarity", "\nreturn", 0.5, True),
        ("code_similarity", "\nreturn y\nmore", 0.5, False),
        ("code_similarity", "return x", 1.0, False),
        ("retrieval", "1 or 7", 0.5, False),
        ("retrieval", "I think", 0.0, True),
        ("string_match", "The RED", 0.5, True),
        ("token_f1", "So  Red it", 0.5, False),
        ("token_f1", "So re", 0.0, True),
    ],
)
def test_a_text_that_was_cut_has_its_answer_or_not_yet(metric, text, value, is_before):
    sample = Sample(id="a", context="c", question="q", answers=("red", "blue"))
    assert is_before_answer(text, value, sample, metric) is is_before


@pytest.mark.parametrize(
    ("constraint", "met", "not_met"),
    [
        ("begins: Dear reader", "\n dear Reader, all", "My dear reader"),
        ("ends: The end", 'So it is. The end."', "The end is near"),
        ("includes: pond", "A POND", "A pool"),
        ("excludes: pond", "A pool", "A Pond"),
        ("max_words: 3", "don't be late", "do not be late"),
        ("min_words: 3", "one two three", "one - two"),
        ("lines: 2", "a\n\nb", "a b"),
        ("bullets: 2", "- a\n* b\nc", "- a\n-\nb - c"),
        ("letters: upper", "LOUD 1!", "Loud"),
        ("letters: lower", "quiet", "Quiet"),
        ("max_digits: 1", "no 1", "no 10"),
    ],
)
def test_a_constraint_is_met_or_not(constraint, met, not_met):
    assert METRICS["constraints"](met, [constraint], ()) == 1
    assert METRICS["constraints"](not_met, [constraint], ()) == 0


def test_constraints_are_the_share_met_and_an_overlong_text_is_judged_where_it_was_cut():
    answers = ("includes: red", "excludes: blue", "max_words: 3", "min_words: 2")
    sample = Sample(id="a", context="c", question="q", answers=answers, metric="constraints")
    assert score("red and blue are here", sample, "") == 0.5
    assert not is_before_answer("red and blue are here", 0.5, sample, "")
    assert is_before_answer("red and blue", 0.75, sample, "")
    assert score(" ", sample, "") == 0
    for wrong in ("shorter: 3", "max_words: few", "begins"):
        with pytest.raises(ConfigError, match="must read NAME: VALUE"):
            METRICS["constraints"]("text", [wrong], ())


def test_a_samples_own_metric_wins():
    sample = Sample(id="a", context="c", question="q", answers=("red",), metric="exact_match")
    assert score("red fox", sample, "string_match") == 0.0
