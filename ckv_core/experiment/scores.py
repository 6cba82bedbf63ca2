"""How well a generated text answers: the metrics of LongBench and RULER, each 0 to 1. No torch."""

import re
from collections.abc import Callable, Iterator, Sequence

from rapidfuzz import fuzz
from rapidfuzz.distance import LCSseq

from ckv_core.experiment.constraints import constraints, is_overlong
from ckv_core.experiment.harness import LM_EVAL, harness_score
from ckv_core.experiment.study import Sample
from ckv_core.records.agreement import edit_similarity, exact_match, f1, spaced, token_f1

RULER, LONGBENCH = "RULER", "LongBench"  # published sets, by the tag `benchmark` of a sample
_FIRST_LINE = ("trec", "triviaqa", "samsum")  # LongBench judges the first line alone
_CODE_COMMENTS = ("`", "#", "//")


def string_match(text: str, answers: Sequence[str], _choices: Sequence[str] = ()) -> float:
    """RULER: share of the answers that occur in the text, ignoring case."""
    return sum(answer.lower() in text.lower() for answer in answers) / len(answers)


def string_match_part(text: str, answers: Sequence[str], _choices: Sequence[str] = ()) -> float:
    """RULER, of questions with several correct answers: whether one of them occurs."""
    return float(any(answer.lower() in text.lower() for answer in answers))


def rouge_l(text: str, answers: Sequence[str], _choices: Sequence[str] = ()) -> float:
    """ROUGE-L (Lin, 2004) over words of lower case: F1 of the longest common subsequence."""
    own, wanted = _words(text), [_words(each) for each in answers]
    return max(f1(own, each, LCSseq.similarity(own, each)) for each in wanted)


def rouge_l_union(text: str, answers: Sequence[str], _choices: Sequence[str] = ()) -> float:
    """LongBench's ROUGE-L, as the package rouge 1.0.1 has it.

    F1 of the words that stand in the longest common subsequence of some pair of sentences, each
    counted once. A sentence ends at a full stop; words keep their case and punctuation.
    """
    own = _sentences(text)
    return max(_union_f1(own, _sentences(answer)) for answer in answers)


def classification(text: str, answers: Sequence[str], choices: Sequence[str] = ()) -> float:
    """LongBench: 1 / number of classes that the text names, if the answer is among them.

    A class that is part of the answer's own name does not count beside it.
    """
    return max(_classified(text, answer, choices or answers) for answer in answers)


def retrieval(text: str, answers: Sequence[str], _choices: Sequence[str] = ()) -> float:
    """LongBench: share of the numbers in the text that are the answer's, e.g. `Paragraph 7`."""
    return max(_share_of_numbers(text, re.findall(r"\d+", each)[:1]) for each in answers)


def count(text: str, answers: Sequence[str], _choices: Sequence[str] = ()) -> float:
    """LongBench: share of the numbers in the text that equal the answer."""
    return max(_share_of_numbers(text, [answer]) for answer in answers)


def code_similarity(text: str, answers: Sequence[str], _choices: Sequence[str] = ()) -> float:
    """LongBench's code completion: edit ratio of the first line that is no comment."""
    lines = text.lstrip("\n").split("\n")
    first = next((line for line in lines if not any(c in line for c in _CODE_COMMENTS)), "")
    return max(round(fuzz.ratio(first, answer)) / 100 for answer in answers)


Metric = Callable[[str, Sequence[str], Sequence[str]], float]
METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (
        string_match,
        string_match_part,
        exact_match,
        token_f1,
        rouge_l,
        rouge_l_union,
        classification,
        retrieval,
        count,
        edit_similarity,
        code_similarity,
        constraints,
    )
}


def score(text: str, sample: Sample, metric: str) -> float:
    """Of a generated text, 0 to 1; the sample's own metric wins.

    Raises:
        CkvError: the task of lm_eval that scores it cannot.
    """
    if sample.metric == LM_EVAL:
        return harness_score(text, sample)
    return METRICS[sample.metric or metric](_judged(text, sample), sample.answers, sample.choices)


def _judged(text: str, sample: Sample) -> str:
    """The part of a text that its benchmark judges."""
    benchmark = sample.tags.get("benchmark")
    if benchmark == RULER:
        return re.sub(r"[\x00-\x1f]", "", text.strip()).strip()
    if benchmark != LONGBENCH:
        return text
    text = text.lstrip()
    return text.split("\n")[0] if sample.tags.get("task") in _FIRST_LINE else text


_ANY_SHARE = ("string_match_part", "classification", "retrieval", "count")


def is_before_answer(text: str, score: float, sample: Sample, metric: str) -> bool:
    """Whether a text that the limit of new tokens cut has not given its answer yet.

    An answer is there with the whole score, with any where the metric looks for one of several,
    and with an answer's own words, of which `string_match` wants all.
    """
    name = sample.metric or metric
    if score == 1 or (name in _ANY_SHARE and score > 0):
        return False
    if name == "constraints":  # a text over its limit of words is judged as it is
        return not is_overlong(text, sample.answers)
    if name == "code_similarity":  # its first line is all that counts
        return "\n" not in text.strip("\n")
    return name == "string_match" or not any(spaced(a) in spaced(text) for a in sample.answers)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _sentences(text: str) -> list[list[str]]:
    """Words of each; one of blanks alone has one empty word, as in the package."""
    return [" ".join(each.split()).split(" ") for each in text.split(".") if each]


def _union_f1(own: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> float:
    common = {word for one in wanted for other in own for word in _subsequence(one, other)}
    if not common:
        return 0.0
    precision, recall = (len(common) / len({w for s in each for w in s}) for each in (own, wanted))
    return 2 * precision * recall / (precision + recall + 1e-8)


def _subsequence(one: Sequence[str], other: Sequence[str]) -> Iterator[str]:
    """The words of a longest common subsequence; of several the one that drops `other`'s end."""
    table = [[0] * (len(other) + 1)]
    for word in one:
        above, row = table[-1], [0]
        for at, each in enumerate(other):
            row.append(above[at] + 1 if word == each else max(above[at + 1], row[at]))
        table.append(row)
    i, j = len(one), len(other)
    while i and j:
        if one[i - 1] == other[j - 1]:
            i, j = i - 1, j - 1
            yield one[i]
        elif table[i - 1][j] > table[i][j - 1]:
            i -= 1
        else:
            j -= 1


def _classified(text: str, answer: str, choices: Sequence[str]) -> float:
    named = [each for each in choices if each in text]
    named = [each for each in named if each == answer or each not in answer]
    return named.count(answer) / len(named) if answer in named else 0.0


def _share_of_numbers(text: str, wanted: Sequence[str]) -> float:
    numbers = re.findall(r"\d+", text)
    right = sum(each in map(str.strip, wanted) for each in numbers)
    return right / len(numbers) if numbers else 0.0
