"""The full cache's text read by all variants, follow-up questions and answer scores."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ckv_core.analysis.agreement import answer_scores
from ckv_core.comparison.compare import compare
from ckv_core.engine.decode import Decoder
from ckv_core.engine.prompt import build_prompt
from ckv_core.errors import PromptError
from ckv_core.measure.teacher_forced import token_rank
from ckv_core.results.events import FollowUpsAnswered, Progress, RunResult, VariantFinished
from tests.factories.models import tiny_model
from tests.factories.tiny_runs import BASE, VARIANTS, analysed, reference, run
from tests.reference.checks import kept_of
from tests.reference.comparison import Reference
from tests.reference.forward import Kept, forward

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("arch", "scenario"), [("llama", "regular"), ("llama", "context-only"), ("gemma3", "regular")]
)
def test_forced_equals_step_by_step_decoding_of_the_masked_full_cache(arch, scenario):
    result = analysed(arch, scenario)
    slow = reference(arch, result)
    tokens = list(result.variants[0].token_ids)
    full = forced_logits(slow, None, tokens)
    for variant in result.variants:
        own = forced_logits(slow, kept_of(result, variant), tokens)
        log_p, log_q = full.log_softmax(-1), own.log_softmax(-1)
        kl = (log_p.exp() * (log_p - log_q)).sum(-1)
        rank = [rank_of(*each) for each in zip(tokens, own.tolist(), strict=True)]
        found = variant.analysis
        np.testing.assert_allclose(found["forced_kl"], kl, rtol=0.02, atol=1e-4)
        assert not np.signbit(found["forced_kl"]).any()
        np.testing.assert_array_equal(found["forced_rank"], rank)
        np.testing.assert_array_equal(found["forced_top1"], own.argmax(-1) == full.argmax(-1))
        for step, p, q in zip(variant.forced_steps, full, own, strict=True):
            for candidates, logits in ((step.reference, p), (step.variant, q)):
                assert [c.token_id for c in candidates] == logits.topk(5).indices.tolist()
                expected = logits.softmax(-1).topk(5).values.tolist()
                assert [c.probability for c in candidates] == pytest.approx(expected, abs=1e-3)


def rank_of(token: int, logits: list[float]) -> int:
    """Place of a token by logit, 1 = best; of equal ones the lower id is first."""
    order = sorted(range(len(logits)), key=lambda other: (-logits[other], other))
    return 1 + order.index(token)


def forced_logits(slow: Reference, kept: Kept | None, tokens: list[int]) -> Tensor:
    """[positions, vocabulary] float64 logits, one token fed at a time."""
    cache, logits = slow.read_question(kept)
    later = [forward(slow.model, [token], cache, kept=kept) for token in tokens[:-1]]
    return torch.stack([logits, *later]).double()


def test_small_chunks_change_nothing(monkeypatch):
    expected = analysed("gemma3", "regular")
    monkeypatch.setattr("ckv_core.measure.teacher_forced._VOCABULARY_LOGITS", 1)
    request = replace(BASE, scenario="regular", analysis=("forced",))
    for variant, other in zip(run(request, "gemma3").variants, expected.variants, strict=True):
        for name, array in variant.analysis.items():
            np.testing.assert_allclose(array, other.analysis[name], rtol=1e-3, atol=1e-5)


def test_equal_logits_rank_by_token_id():
    logits = torch.tensor([[[1.0, 3.0, 3.0, 2.0]]])
    ranks = [int(token_rank(logits, torch.tensor([token]))) for token in range(4)]
    assert ranks == [4, 1, 2, 3]


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_a_follow_up_is_answered_as_in_a_run_of_its_own(*, ignore_eos):
    questions = ("Where was the harbour?", "How many ships?")
    request = replace(BASE, scenario="context-only", ignore_eos=ignore_eos)
    result = run(replace(request, follow_ups=questions))
    told = ("token_ids", "text", "token_texts", "stopped", "agreement", "first_difference")
    for number, question in enumerate(questions):
        alone = run(replace(request, question=question))
        for variant, fresh in zip(result.variants, alone.variants, strict=True):
            answer = variant.follow_ups[number]
            assert answer.question == question
            for name in told:
                assert getattr(answer, name) == getattr(fresh, name), name


def test_rows_that_have_stopped_leave_the_batch_of_a_follow_up(monkeypatch):
    request = replace(BASE, scenario="context-only", ignore_eos=False, follow_ups=("Where?",))
    free = run(replace(request, ignore_eos=True))
    # End at a token that some rows meet early and others late or never.
    counts = Counter(i for v in free.variants for i in set(v.follow_ups[0].token_ids[:3]))
    end = next(token for token, count in counts.items() if 0 < count < len(VARIANTS))
    model = replace(tiny_model("llama"), eos_token_ids=frozenset({end}))
    fed: list[int] = []
    feed = Decoder.feed

    def counted(self: Decoder, token_ids: Tensor, *, commit: bool = True) -> Tensor:
        fed.append(len(token_ids))
        return feed(self, token_ids, commit=commit)

    monkeypatch.setattr(Decoder, "feed", counted)
    result = RunResult()
    for event in compare(request, model):
        result.apply(event)
        if isinstance(event, VariantFinished):
            fed.clear()  # what follows is the follow-up's
    lengths = [len(variant.follow_ups[0].token_ids) for variant in result.variants]
    assert min(lengths) < max(lengths)
    # each row once per token after its first
    assert sum(fed) == sum(length - 1 for length in lengths)


def test_follow_ups_come_one_question_at_a_time():
    request = replace(BASE, scenario="context-only", follow_ups=("One?", "Two?"))
    events = list(compare(request, tiny_model("llama")))
    counts = [len(e.follow_ups) for e in events if isinstance(e, FollowUpsAnswered)]
    assert counts == [1] * len(VARIANTS) + [2] * len(VARIANTS)
    assert any(isinstance(e, Progress) and e.stage == "analyse" for e in events)


def test_a_follow_up_that_changes_the_compressed_prompt_is_refused(monkeypatch):
    def other(*arguments: object) -> object:
        prompt = build_prompt(*arguments)
        return replace(prompt, token_ids=(7, *prompt.token_ids[1:]))

    monkeypatch.setattr("ckv_core.comparison.generate.build_prompt", other)
    request = replace(BASE, scenario="context-only", follow_ups=("Who then?",))
    with pytest.raises(PromptError, match="Who then"):
        next(compare(request, tiny_model("llama")))


def test_answer_scores_are_shares():
    assert answer_scores("anything", "  ") == {}
    same = answer_scores("The code is 42.", "the code is 42.")
    assert same == {"exact_match": 1.0, "token_f1": 1.0, "edit_similarity": 1.0}
    half = answer_scores("blue harbour", "harbour")
    assert half["exact_match"] == 0
    assert half["token_f1"] == pytest.approx(2 / 3)
    assert half["edit_similarity"] == pytest.approx(7 / 12)
    result = run(replace(BASE, answer="harbour", variants=("full", "snapkv")))
    for variant in result.variants:
        assert variant.answer_scores == answer_scores(variant.text, "harbour")
