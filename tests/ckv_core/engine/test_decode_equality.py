"""Compact batched decode against the masked full cache, also on the full cache's text; no leaks."""

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from ckv_core.engine.compare import compare
from ckv_core.engine.decode import READ_CHUNK, Decoder
from ckv_core.engine.further_passes import further_passes
from ckv_core.engine.generation import Draw
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.prompt import prompt_of
from ckv_core.engine.teacher_forced import token_rank
from ckv_core.errors import ConfigError, PromptError
from ckv_core.methods import attention as partial
from ckv_core.methods.parts.views import PromptTokens
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.shape import CHUNK
from ckv_core.records.agreement import answer_scores
from ckv_core.records.events import FollowUpsAnswered, Progress, RunResult, VariantFinished
from ckv_core.records.metrics import METRICS
from ckv_core.records.records import PromptInfo, VariantResult
from ckv_core.records.run_request import Repeats, RunRequest, Scenario
from ckv_core.records.variants import VariantSpec
from tests.factories.decoding import BUDGET, CLOSE, PROMPT_LEN, masked, prefilled, steady_decoder
from tests.factories.events import folded
from tests.factories.models import (
    ARCHITECTURES,
    HYBRID,
    LONGROPE_ORIGINAL,
    SPECS,
    drained,
    plain_model,
    prompt_ids,
    tiny_model,
)
from tests.factories.tiny_runs import BASE, VARIANTS, analysed, reference, short_request
from tests.factories.tiny_runs import run as tiny_run
from tests.reference.checks import kept_of
from tests.reference.comparison import Reference
from tests.reference.forward import Kept, forward
from tests.reference.report import report

pytestmark = pytest.mark.slow

# A run takes 16 variants at most.
GROUPS = (SPECS[::3], SPECS[1::3], SPECS[2::3])
# Each method once, in one scenario or the other, on layers with and without sliding windows.
THIRDS = [
    pytest.param(GROUPS[0], "llama", "context-only", id="llama"),
    pytest.param(GROUPS[1], "gemma3", "regular", id="gemma3"),
    pytest.param(GROUPS[2], "llama", "regular", id="llama regular"),
]


READ = ("full", "snapkv", "adakv+critical")


@torch.inference_mode()
def read(loaded: LoadedModel, token_ids: list[int]) -> Prefill:
    """With what these methods ask for alone."""
    needs = Needs.of(map(VariantSpec.parse, READ))
    return drained(prefill(loaded, token_ids, needs, lambda: False))


@pytest.mark.parametrize("arch", [*ARCHITECTURES, *HYBRID])
def test_logits_equal_the_masked_full_cache(arch):
    """A pass over several tokens (a question), then single tokens, other ones in every row."""
    loaded = tiny_model(arch)
    token_ids = prompt_ids(PROMPT_LEN)
    specs = SPECS if arch in ARCHITECTURES else READ
    fed = [prompt_ids(21, seed) for seed in range(len(specs))]
    passes = [slice(0, 9), slice(9, 18), slice(18, 19), slice(19, 20), slice(20, 21)]
    with torch.inference_mode():
        result = prefilled(loaded, token_ids) if arch in ARCHITECTURES else read(loaded, token_ids)
        decoder, selections = steady_decoder(result, 21, specs)
        actual = [decoder.feed(torch.tensor(fed)[:, part]) for part in passes]
    whole = DynamicCache(config=plain_model(arch).config)
    forward(plain_model(arch), token_ids, whole)
    for row, selection in enumerate(selections):
        cache, kept = deepcopy(whole), masked(selection.keep_masks, loaded, PROMPT_LEN)
        for part, logits in zip(passes, actual, strict=True):
            expected = forward(plain_model(arch), fed[row][part], cache, kept=kept)
            torch.testing.assert_close(logits[row], expected, **CLOSE)


@pytest.mark.parametrize(
    ("arch", "length"),
    [
        *product([*ARCHITECTURES, "longrope"], [1, PROMPT_LEN, CHUNK + 70]),
        *product(HYBRID, [1, CHUNK + 70]),
    ],
)
def test_prefill_equals_plain_transformers(arch, length):
    """In one chunk and in two; sliding layers, whose plain cache holds the window, included."""
    loaded = tiny_model(arch)
    token_ids = prompt_ids(length)
    result = read(loaded, token_ids) if arch in HYBRID else prefilled(loaded, token_ids)
    cache = DynamicCache(config=plain_model(arch).config)
    logits = forward(plain_model(arch), token_ids, cache)
    torch.testing.assert_close(result.logits, logits, **CLOSE)
    for states, plain in zip(result.layers, cache.layers, strict=True):
        if states.state is not None:
            torch.testing.assert_close(states.state.conv, plain.conv_states[0], **CLOSE)
            torch.testing.assert_close(states.state.recurrent, plain.recurrent_states[0], **CLOSE)
            continue
        held = plain.keys.shape[2]
        assert held <= states.keys.shape[1] == length
        torch.testing.assert_close(states.keys[:, -held:], plain.keys[0], **CLOSE)
        torch.testing.assert_close(states.values[:, -held:], plain.values[0], **CLOSE)


@torch.inference_mode()
def test_linear_layers_begin_each_further_pass_at_the_prompts_end():
    loaded, token_ids = tiny_model("qwen3_next"), prompt_ids(PROMPT_LEN)
    (repeated,) = VariantSpec.parse("kvzip:repeat=64").passes
    passes = repeated.passes(PromptTokens(tuple(token_ids), 0, (5,), lambda _text: [6, 7]))
    assert len(passes) == 3
    found = []
    for order in (passes, passes[::-1]):
        result = read(loaded, token_ids)
        for _ in further_passes(result, [(repeated, order)], lambda: False):
            pass
        found.append(result.observed[repeated])
    for layer, most in found[0].items():
        torch.testing.assert_close(most, found[1][layer])


@pytest.mark.parametrize(
    ("length", "question"),
    [
        pytest.param(CHUNK + 70, 9, id="a long prompt"),
        pytest.param(LONGROPE_ORIGINAL - READ_CHUNK - 20, READ_CHUNK + 40, id="over the border"),
    ],
)
def test_longrope_decodes_as_plain_transformers(length, question):
    """Factors are those of the whole question, and from then on those of each step."""
    loaded, plain = tiny_model("longrope"), plain_model("longrope")
    token_ids = prompt_ids(length + question + 3)
    parts = (token_ids[length:-3], token_ids[-3:-2], token_ids[-2:-1], token_ids[-1:])
    cache = DynamicCache(config=plain.config)
    expected = [forward(plain, part, cache) for part in (token_ids[:length], *parts)][1:]
    with torch.inference_mode():
        result = prefilled(loaded, token_ids[:length])
        decoder, _ = steady_decoder(result, question + 3, ("full",))
        actual = [decoder.read(part)[0] for part in parts]
    torch.testing.assert_close(torch.stack(actual), torch.stack(expected), **CLOSE)


def test_longrope_reads_a_generated_text_as_it_was_generated():
    """Over the border too, where each token had the factors of its own step."""
    loaded = tiny_model("longrope")
    length = LONGROPE_ORIGINAL - 3
    token_ids = prompt_ids(length + 6)
    fed = torch.tensor([token_ids[length:]])
    with torch.inference_mode():
        result = prefilled(loaded, token_ids[:length])
        steps, together = (steady_decoder(result, 6, ("full",))[0] for _ in range(2))
        expected = torch.stack([steps.feed(fed[:, at : at + 1]) for at in range(6)], dim=1)
        torch.testing.assert_close(together.feed_all(fed), expected, **CLOSE)


def test_rows_in_blocks_of_queries_give_the_same(monkeypatch):
    loaded = tiny_model("gemma3")
    token_ids = prompt_ids(PROMPT_LEN)
    fed = torch.tensor([prompt_ids(17)] * len(SPECS))
    with torch.inference_mode():
        result = prefilled(loaded, token_ids)
        expected = steady_decoder(result, 17)[0].feed(fed)
        monkeypatch.setattr(partial, "MAX_LOGITS", 5_000)
        actual = steady_decoder(result, 17)[0].feed(fed)
    torch.testing.assert_close(actual, expected, **CLOSE)


# --- whole runs ---------------------------------------------------------------------------


def request(scenario: Scenario, variants: tuple[str, ...], *, start: int = 0) -> RunRequest:
    text, budgets = report()[start : start + 300], (str(BUDGET),)
    return short_request(*variants, scenario=scenario, context=text, budgets=budgets)


def run(asked: RunRequest, loaded: LoadedModel, prefills: PrefillCache | None = None) -> RunResult:
    result = folded(compare(asked, loaded, prefills=prefills))
    assert result.finished
    return result


def outcome(variant: VariantResult) -> tuple[object, ...]:
    """Everything but times, exactly; distances last."""
    moved = variant.perturbation
    distances = moved and (moved.head_l1.tobytes(), moved.layer_hidden_l1.tobytes(), moved.kl)
    return (variant.retained, variant.token_ids, variant.text, variant.receipt, distances)


def outcomes(result: RunResult) -> list[tuple[object, ...]]:
    return [outcome(variant) for variant in result.variants]


@pytest.mark.parametrize(("methods", "arch", "scenario"), THIRDS)
def test_a_batch_gives_each_variant_what_it_gets_alone(methods, arch, scenario):
    prefills = PrefillCache(2**30)  # the same for both; what a batch changes comes after it
    together = run(request(scenario, methods), tiny_model(arch), prefills)
    # Every third, since each runs anew.
    for name, in_batch in list(zip(methods, together.variants, strict=True))[::3]:
        (alone,) = run(request(scenario, (name,)), tiny_model(arch), prefills).variants
        assert outcome(alone)[:-1] == outcome(in_batch)[:-1]
        if name == "full":
            assert alone.perturbation is in_batch.perturbation is None
            continue
        # matrix products of another batch size may round differently
        assert alone.perturbation.layer_hidden_l1.tolist() == pytest.approx(
            in_batch.perturbation.layer_hidden_l1.tolist(), rel=1e-3, abs=1e-3
        )


def test_a_sequence_of_runs_equals_fresh_models():
    """Other texts, scenarios and parameters before a run, or one that ends early, leave nothing."""
    arch = "gemma3"  # layers of both kinds
    used = tiny_model.__wrapped__(arch)
    asked = [
        request("regular", GROUPS[0]),
        request("context-only", ("adakv:safeguard=0", "full"), start=700),
        request("context-only", GROUPS[1], start=300),
        request("regular", ("pyramidkv+critical:sinks=3,beta=2",), start=1200),
    ]
    in_sequence = []
    for one in asked:
        cancelled = compare(one, used)
        for _ in range(6):
            next(cancelled)
        cancelled.close()
        in_sequence.append(outcomes(run(one, used)))
    fresh = [outcomes(run(one, tiny_model.__wrapped__(arch))) for one in asked]
    assert in_sequence == fresh
    assert outcomes(run(asked[0], used)) == fresh[0]


@pytest.mark.parametrize(("methods", "arch", "scenario"), THIRDS)
def test_a_row_that_meets_its_end_token_stops_and_the_others_go_on(methods, arch, scenario):
    loaded, asked = tiny_model(arch), request(scenario, methods)
    free = run(asked, loaded).variants
    end = next(
        token
        for token in free[1].token_ids[1:]
        if any(token not in variant.token_ids for variant in free)
    )
    stopping = replace(loaded, eos_token_ids=frozenset({end}))
    ended = run(replace(asked, ignore_eos=False), stopping).variants
    for variant, whole in zip(ended, free, strict=True):
        ids = list(whole.token_ids)
        cut = ids.index(end) + 1 if end in ids else len(ids)
        assert list(variant.token_ids) == ids[:cut]
        assert variant.stopped == ("eos" if end in ids else "length")
        assert METRICS["stopped_at_limit"].read(variant) == (end not in ids)


def test_a_text_is_as_long_as_a_share_of_the_full_caches_unless_that_was_cut():
    asked, loaded = short_request("full", "snapkv", budgets=("40",)), tiny_model("llama")
    free = run(asked, loaded).variants
    assert [METRICS["length_ratio"].read(variant) for variant in free] == [None, None]
    stopping = replace(loaded, eos_token_ids=frozenset({free[0].token_ids[2]}))
    full, other = run(replace(asked, ignore_eos=False), stopping).variants
    ratio = len(other.token_ids) / len(full.token_ids)
    assert METRICS["length_ratio"].read(full) is None
    assert METRICS["length_ratio"].read(other) == pytest.approx(ratio)


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
    monkeypatch.setattr("ckv_core.engine.teacher_forced._VOCABULARY_LOGITS", 1)
    request = replace(BASE, scenario="regular", analysis=("forced",))
    for variant, other in zip(tiny_run(request, "gemma3").variants, expected.variants, strict=True):
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
    result = tiny_run(replace(request, follow_ups=questions))
    told = ("token_ids", "text", "token_texts", "stopped", "agreement", "first_difference")
    for number, question in enumerate(questions):
        alone = tiny_run(replace(request, question=question))
        for variant, fresh in zip(result.variants, alone.variants, strict=True):
            answer = variant.follow_ups[number]
            assert answer.question == question
            for name in told:
                assert getattr(answer, name) == getattr(fresh, name), name


@pytest.mark.parametrize("scenario", ["regular", "context-only"])
def test_sampled_texts_are_those_of_their_seed_and_greedy_ones_without_heat(scenario):
    request = replace(BASE, scenario=scenario, answer="the", ignore_eos=True)
    greedy = tiny_run(request).variants
    cold, hot, again, other = (
        tiny_run(replace(request, repeats=f"3:temperature={text}")).variants
        for text in ("0.0001", "0.1,seed=1", "0.1,seed=1", "0.1,seed=2")
    )
    for one, plain in zip(cold, greedy, strict=True):
        assert one.token_ids == plain.token_ids  # sampling leaves the greedy text as it is
        assert one.analysis["sampled_agreement"].tolist() == [1.0]
        assert {each.text for each in one.sampled_texts} == {plain.text}
        if plain.answer_found:
            assert one.analysis["sampled_answer"].tolist() == [1.0]
            assert one.analysis["sampled_spread"].tolist() == [0.0]
    figures = [[v.analysis["sampled_agreement"].tolist() for v in r] for r in (hot, again, other)]
    assert figures[0] == figures[1]
    assert figures[0] != figures[2]
    assert min(figures[0]) < [1.0]
    assert [v.sampled_texts for v in hot] == [v.sampled_texts for v in again]
    for one in hot:
        drawn = one.sampled_texts
        assert (len(drawn), {each.stopped for each in drawn}) == (3, {"length"})
        assert [each.answer_found for each in drawn] == ["the" in each.text for each in drawn]
        assert {each.outcome for each in drawn} <= {"answered", "cut"}


def test_a_token_is_drawn_from_the_smallest_set_that_reaches_top_p():
    logits = torch.log(torch.tensor([[0.1, 0.5, 0.3, 0.1], [0.25, 0.25, 0.25, 0.25]]))
    draw = Draw(Repeats(count=1, top_p=0.75), 0)
    drawn = torch.stack([draw.tokens(logits) for _ in range(4000)])
    shares = torch.stack([(drawn == token).double().mean(0) for token in range(4)])
    wanted = torch.tensor([[0, 0.625, 0.375, 0], [1 / 3, 1 / 3, 1 / 3, 0]], dtype=torch.float64)
    assert torch.allclose(shares.T, wanted, atol=0.03)
    for text in ("0", "5:top_p=0", "5:temperature=nan", "5:heat=1", "x", "99"):
        with pytest.raises(ConfigError, match="must read COUNT"):
            Repeats.parse(text)


def test_rows_that_have_stopped_leave_the_batch_of_a_follow_up(monkeypatch):
    request = replace(BASE, scenario="context-only", ignore_eos=False, follow_ups=("Where?",))
    free = tiny_run(replace(request, ignore_eos=True))
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
    def other(*arguments: Any, **texts: str) -> PromptInfo:
        prompt = prompt_of(*arguments, **texts)
        return replace(prompt, token_ids=(7, *prompt.token_ids[1:]))

    monkeypatch.setattr("ckv_core.engine.generate.prompt_of", other)
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
    result = tiny_run(replace(BASE, answer="harbour", variants=("full", "snapkv")))
    for variant in result.variants:
        assert variant.answer_scores == answer_scores(variant.text, "harbour")
