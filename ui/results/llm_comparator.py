"""Two variants of a run in the JSON of Google PAIR's LLM Comparator.

The format: https://github.com/PAIR-code/llm-comparator#json-data-format. A run has one example per
question: the run's own and its follow-up questions. No judge has read them, so a score is a
difference of two measured closenesses, and its rationale says which.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ckv_core.errors import ConfigError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.chain import mean_head_l1
from ckv_core.results.events import RunResult
from ckv_core.results.records import VariantResult
from storage.records import RunNotes
from ui.charts.layout import display_names
from ui.services.live_runs import RunSnapshot

SCORE_RANGE = 1.5  # the tool takes scores of -1.5 to 1.5; above 0 the first model is better
TO_ANSWER = "Token F1 with the reference answer"
TO_FULL = "Agreement with the full cache's tokens"
NO_PAIR = "This run has no two generations to compare."

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one variant generated after one question."""

    question: str
    text: str
    tokens: int
    agreement: float | None
    f1: float | None


_OF_ANSWER: dict[str, Callable[[_Answer], float | None]] = {
    "generated tokens": lambda answer: answer.tokens,
    "agreement with full": lambda answer: answer.agreement,
}
_OF_RUN: dict[str, Callable[[VariantResult], float | None]] = {
    "cache bytes": lambda v: v.receipt.cache_bytes if v.receipt else None,
    "KL, nats": lambda v: v.perturbation.kl if v.perturbation else None,
    "final hidden L1": lambda v: v.perturbation.final_hidden_l1 if v.perturbation else None,
    "mean head L1": mean_head_l1,
}


def comparable_pairs(result: RunResult) -> list[tuple[int, int]]:
    """The full cache, or else the first variant, against each of the others with a text."""
    texts = [index for index, variant in enumerate(result.variants) if variant.token_ids]
    first = next((i for i in texts if result.variants[i].method == "full"), next(iter(texts), 0))
    return [(first, index) for index in texts if index != first]


def comparator_json(run: RunSnapshot, notes: RunNotes, first: int, second: int) -> Json:
    """One file of the format: the variants at two indices of a run that is over, as models A and B.

    Raises:
        ConfigError: these are not two different variants with generated text.
    """
    variants = run.result.variants
    known = [index for index, variant in enumerate(variants) if variant.token_ids]
    if first == second or not {first, second} <= set(known):
        raise ConfigError(f"Name two of the variants with text: {', '.join(map(str, known))}.")
    names = display_names(variants, escaped=False)
    return {
        "metadata": {
            "source_path": f"CriticalKV Lab, run {run.slug}",
            "custom_fields_schema": [
                {"name": "score_is", "type": "category"},
                *({"name": name, "type": "per_model_number"} for name in (*_OF_ANSWER, *_OF_RUN)),
            ],
        },
        "models": [{"name": names[first]}, {"name": names[second]}],
        "examples": _examples(run, notes, variants[first], variants[second]),
    }


def _examples(
    run: RunSnapshot, notes: RunNotes, left: VariantResult, right: VariantResult
) -> list[Json]:
    asked = run.request
    tags = [asked.scenario, *notes.tags]
    examples: list[Json] = []
    for a, b in zip(_answers(left, asked), _answers(right, asked), strict=False):
        is_own = not examples
        score, told = _score(a, b)
        rating = {"is_flipped": False, "score": score, "rationale": told}
        figures = {name: [read(a), read(b)] for name, read in _OF_ANSWER.items()}
        # Taken at the run's own first decoding step, so they say nothing of a follow-up.
        for name, of_run in _OF_RUN.items():
            figures[name] = [of_run(left), of_run(right)] if is_own else [None, None]
        examples.append(
            {
                "input_text": f"{asked.context}\n\n{a.question}".strip(),
                "tags": ["question" if is_own else "follow-up", *tags],
                "output_text_a": a.text,
                "output_text_b": b.text,
                "score": score,
                "individual_rater_scores": [] if score is None else [rating],
                "custom_fields": {"score_is": told.partition(":")[0], **figures},
            }
        )
    return examples


def _answers(variant: VariantResult, asked: CompareRequest) -> list[_Answer]:
    is_full = variant.method == "full"
    f1 = variant.answer_scores.get("token_f1")
    own = (asked.question, variant.text, len(variant.token_ids), variant.agreement, f1)
    later = [(f.question, f.text, len(f.token_ids), f.agreement, None) for f in variant.follow_ups]
    return [
        _Answer(question, text, tokens, 1.0 if is_full else agreement, of_answer)
        for question, text, tokens, agreement, of_answer in (own, *later)
    ]


def _score(a: _Answer, b: _Answer) -> tuple[float | None, str]:
    """How much closer A is, and to what; None where one was not compared."""
    by_answer = a.f1 is not None and b.f1 is not None
    one, other = (a.f1, b.f1) if by_answer else (a.agreement, b.agreement)
    name = TO_ANSWER if by_answer else TO_FULL
    if one is None or other is None:
        return None, f"{name}: not known"
    return round(SCORE_RANGE * (one - other), 4), f"{name}: A {one:.3g}, B {other:.3g}"
