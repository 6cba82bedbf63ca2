"""The laboratory on tiny models, against a literal float64 computation and against plain runs."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from ckv_core.config import CompareRequest, Scenario
from ckv_core.engine.compare import compare
from ckv_core.errors import RunCancelledError
from ckv_core.events import FollowUpsAnswered, Progress, RunResult, VariantAnalysed
from ckv_core.metrics.agreement import token_rank
from ckv_core.quantities import QUANTITIES
from ckv_core.records import VariantResult
from tests.core.tiny_models import plain_model, tiny_model
from tests.reference.checks import kept_from_mask
from tests.reference.comparison import Reference
from tests.reference.forward import Kept, Tap, forward
from tests.reference.prompt import build_prompt
from tests.reference.report import report
from tests.reference.scores import layer_values, output_weight

VARIANTS = (
    "full",
    "snapkv",
    "snapkv+critical:sinks=3",
    "adakv+critical:alpha=0.6",
    "pyramidkv:beta=3",
    "streaming_llm",
    "snapkv:budget=5000",
)
BASE = CompareRequest(
    context=report()[2000:2330],
    question="Who counted the vessels?",
    variants=VARIANTS,
    defaults={"budget": "48"},
    max_new_tokens=9,
    ignore_eos=True,
)
SCENARIOS: tuple[Scenario, Scenario] = ("regular", "context-only")


def run(request: CompareRequest, arch: str = "llama") -> RunResult:
    result = RunResult()
    for event in compare(request, tiny_model(arch)):
        result.apply(event)
    assert result.finished
    return result


@cache
def analysed(arch: str, scenario: Scenario) -> RunResult:
    analysis = ("bounds", "greedy", "forced")
    return run(replace(BASE, scenario=scenario, analysis=analysis), arch)


def reference(arch: str, scenario: Scenario, result: RunResult) -> Reference:
    tokenizer = tiny_model(arch).tokenizer
    prompt = build_prompt(tokenizer, BASE.context, BASE.question, scenario)
    return Reference.prefill(
        plain_model(arch), prompt, [dict(variant.params) for variant in result.variants]
    )


def kept_of(result: RunResult, variant: VariantResult) -> Kept | None:
    assert result.model is not None
    if variant.retained is None:
        return None
    return kept_from_mask(variant.retained.mask(), result.model.evictable_layers)


def three(full: Tensor, evicted: Tensor) -> tuple[float, float, float]:
    """L1, L2 and cosine distance, float64."""
    a, b = full.double(), evicted.double()
    cosine = 1 - float(a @ b) / max(float(a.norm() * b.norm()), 1e-300)
    return float((a - b).abs().sum()), float((a - b).norm()), cosine


class Heads:
    """Outputs of every head through W_O in one layer of the eager model, float64."""

    def __init__(self, arch: str, layer: int, tap: Tap, values: Tensor) -> None:
        weight = output_weight(plain_model(arch), layer).double()
        self.attention = tap.attention[layer][:, -1].double()  # [query_heads, entries]
        self.group = len(self.attention) // len(values)
        width = values.shape[-1]
        self.projected = torch.stack(
            [
                values[h // self.group].double() @ weight[:, h * width : (h + 1) * width].T
                for h in range(len(self.attention))
            ]
        )  # [query_heads, entries, hidden]

    def keep(self, kept: Tensor) -> Tensor:
        """[kv_heads, compressed] bool to [query_heads, entries] with the tail."""
        tail = self.attention.shape[1] - kept.shape[1]
        whole = torch.cat([kept, torch.ones(len(kept), tail, dtype=torch.bool)], dim=1)
        return whole.repeat_interleave(self.group, 0)

    def output(self, keep: Tensor) -> Tensor:
        a = self.attention * keep
        return torch.einsum("hn,hnd->hd", a / a.sum(-1, keepdim=True), self.projected)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3"])
def test_every_quantity_equals_a_literal_computation(arch: str, scenario: Scenario) -> None:
    result = analysed(arch, scenario)
    model = result.model
    assert model is not None
    slow = reference(arch, scenario, result)
    _, logits = slow.read_question(None)
    token = int(logits.argmax())
    full_tap, full_cache, _ = slow.first_step(None, token)
    for variant in result.variants[1:]:
        kept = kept_of(result, variant)
        assert kept is not None
        tap, cache, _ = slow.first_step(kept, token)
        found = variant.analysis
        for layer in range(model.layers):
            full_hidden, hidden = full_tap.hidden[layer].flatten(), tap.hidden[layer].flatten()
            _, l2, cosine = three(full_hidden, hidden)
            assert found["hidden_l2"][layer] == pytest.approx(l2, rel=0.02, abs=1e-3)
            assert found["hidden_cosine"][layer] == pytest.approx(cosine, rel=0.02, abs=1e-4)
            size = float(full_hidden.double().abs().sum())
            assert found["hidden_norm_l1"][layer] == pytest.approx(size, rel=1e-3)
            if layer not in model.evictable_layers:
                for name in QUANTITIES:
                    if QUANTITIES[name].axes in ("head", "layer") and "hidden" not in name:
                        assert np.isnan(found[name][layer]).all(), name
                continue
            layer_kept = kept[layer]
            assert layer_kept is not None
            mask = torch.tensor(np.array(layer_kept))
            heads = Heads(arch, layer, full_tap, layer_values(full_cache, layer))
            keep = heads.keep(mask)
            whole = heads.output(torch.ones_like(keep))
            isolated = heads.output(keep)
            own = Heads(arch, layer, tap, layer_values(cache, layer))
            everything = torch.ones(own.attention.shape, dtype=torch.bool)
            cascaded = own.output(everything)
            for suffix, moved in (("", isolated), ("_cascaded", cascaded)):
                check_distances(found, layer, suffix, whole, moved)
            check_masses(found, layer, heads, keep)


def check_distances(
    found: dict[str, np.ndarray], layer: int, suffix: str, whole: Tensor, moved: Tensor
) -> None:
    for head, (a, b) in enumerate(zip(whole, moved, strict=True)):
        for metric, value in zip(("l1", "l2", "cosine"), three(a, b), strict=True):
            name = f"head_{metric}{suffix}"
            if name in QUANTITIES:
                expected = pytest.approx(value, rel=0.02, abs=2e-3)
                assert found[name][layer, head] == expected, (name, layer, head)
    for metric, value in zip(
        ("l1", "l2", "cosine"), three(whole.sum(0), moved.sum(0)), strict=True
    ):
        name = f"attention_{metric}{suffix}"
        assert found[name][layer] == pytest.approx(value, rel=0.02, abs=2e-3), (name, layer)


def check_masses(found: dict[str, np.ndarray], layer: int, heads: Heads, keep: Tensor) -> None:
    norms = heads.projected.abs().sum(-1)
    weighted = heads.attention * norms
    sigma = (heads.attention * keep).sum(-1)
    theta = weighted.sum(-1) - (2 - 1 / sigma) * (weighted * keep).sum(-1)
    close = {"rtol": 2e-3, "atol": 2e-3}
    np.testing.assert_allclose(found["sigma_kept"][layer], sigma, **close)
    np.testing.assert_allclose(found["value_mass"][layer], weighted.sum(-1), **close)
    np.testing.assert_allclose(found["theta"][layer], theta, **close)
    grouped_a = heads.attention.view(-1, heads.group, keep.shape[1]).mean(1)
    grouped_c = weighted.view(-1, heads.group, keep.shape[1]).mean(1)
    for name, score in (("attention", grouped_a), ("critical", grouped_c)):
        losses = found[f"oracle_{name}_l1"][layer]
        assert losses.shape == sigma.shape
        assert (losses >= 0).all()
        assert np.isfinite(losses).all()
        assert score.shape[0] * heads.group == len(losses)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_arrays_have_the_shapes_and_names_of_the_contract(arch: str) -> None:
    result = analysed(arch, "regular")
    model = result.model
    assert model is not None
    assert set(result.variants[0].analysis) == {"forced_top1", "forced_kl", "forced_rank"}
    shapes = {
        "head": (model.layers, model.query_heads),
        "layer": (model.layers,),
        "model": (1,),
        "step": (BASE.max_new_tokens,),
    }
    for variant in result.variants[1:]:
        assert set(variant.analysis) == set(QUANTITIES)
        for name, array in variant.analysis.items():
            assert array.shape == shapes[QUANTITIES[name].axes], name
            assert array.dtype == np.float32, name


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_laws_of_sets_that_keep_everything_and_of_stage_one(scenario: Scenario) -> None:
    result = analysed("llama", scenario)
    whole = result.variants[-1].analysis
    for name in ("theta", "theta_hat", "theta_relaxed", "oracle_greedy_l1", "oracle_critical_l1"):
        assert np.nanmax(np.abs(whole[name])) < 1e-4
    assert whole["sigma_stage1"] == pytest.approx(1.0, abs=1e-5)
    for variant in result.variants[1:]:
        found, measured = variant.analysis, variant.perturbation
        assert measured is not None
        assert (found["sigma_stage1"] <= found["sigma_kept"] + 1e-6).all()
        assert (found["sigma_stage1"] <= found["sigma_oracle"] + 1e-6).all()
        assert (measured.head_l1 <= found["theta"] * 1.001 + 1e-3).all()
        assert (found["theta"] <= found["theta_hat"] * 1.001 + 1e-3).all()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_greedy_oracle_is_the_best_oracle_of_every_group(scenario: Scenario) -> None:
    for variant in analysed("llama", scenario).variants[1:]:
        sums = {
            name: variant.analysis[f"oracle_{name}_l1"].reshape(3, 2, 2).sum(-1)
            for name in ("attention", "critical", "greedy")
        }
        assert (sums["greedy"] <= sums["attention"] + 1e-4).all()
        assert (sums["greedy"] <= sums["critical"] + 1e-4).all()


def test_plain_variants_take_the_runs_alpha_for_stage_one() -> None:
    changed = replace(BASE, variants=("snapkv", "streaming_llm"), analysis=("bounds",))
    sigmas = []
    for alpha in ("0", "0.5", "1"):
        result = run(replace(changed, defaults={"budget": "48", "alpha": alpha}))
        sigmas.append([v.analysis["sigma_stage1"] for v in result.variants])
        if alpha == "1":
            for variant, sigma in zip(result.variants, sigmas[-1], strict=True):
                np.testing.assert_allclose(sigma, variant.analysis["sigma_kept"], atol=1e-6)
    for less, more in zip(sigmas[0], sigmas[1], strict=True):
        assert (less <= more + 1e-7).all()
        assert (less < more).any()


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_forced_equals_step_by_step_decoding_of_the_masked_full_cache(
    arch: str, scenario: Scenario
) -> None:
    result = analysed(arch, scenario)
    slow = reference(arch, scenario, result)
    tokens = list(result.variants[0].token_ids)
    full = forced_logits(slow, None, tokens)
    for variant in result.variants:
        own = forced_logits(slow, kept_of(result, variant), tokens)
        log_p, log_q = full.log_softmax(-1), own.log_softmax(-1)
        kl = (log_p.exp() * (log_p - log_q)).sum(-1)
        rank = token_rank(own[None], torch.tensor(tokens))[0]
        found = variant.analysis
        np.testing.assert_allclose(found["forced_kl"], kl, rtol=0.02, atol=1e-4)
        np.testing.assert_array_equal(found["forced_rank"], rank)
        np.testing.assert_array_equal(found["forced_top1"], own.argmax(-1) == full.argmax(-1))
        for step, p, q in zip(variant.forced_steps, full, own, strict=True):
            for candidates, logits in ((step.reference, p), (step.variant, q)):
                assert [c.token_id for c in candidates] == logits.topk(5).indices.tolist()
                expected = logits.softmax(-1).topk(5).values.tolist()
                assert [c.probability for c in candidates] == pytest.approx(expected, abs=1e-3)


def forced_logits(slow: Reference, kept: Kept | None, tokens: list[int]) -> Tensor:
    """[positions, vocabulary] float64 logits, one token fed at a time."""
    cache, logits = slow.read_question(kept)
    later = [forward(slow.model, [token], cache, kept=kept) for token in tokens[:-1]]
    return torch.stack([logits, *later]).double()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_full_cache_agrees_with_itself_everywhere(scenario: Scenario) -> None:
    for index in (0, -1):  # and so does a variant that evicts nothing
        found = analysed("llama", scenario).variants[index].analysis
        assert (found["forced_top1"] == 1).all()
        assert (found["forced_rank"] == 1).all()
        assert found["forced_kl"] == pytest.approx(0.0, abs=1e-6)


def test_the_first_position_of_a_regular_run_is_equal_for_all() -> None:
    for variant in analysed("llama", "regular").variants:
        assert variant.analysis["forced_kl"][0] == 0
        assert variant.forced_steps[0].variant == variant.forced_steps[0].reference


def test_small_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = analysed("gemma3", "context-only")
    monkeypatch.setattr("ckv_core.engine.forced._MAX_LOGITS", 1)
    request = replace(BASE, scenario="context-only", analysis=("forced",))
    for variant, other in zip(run(request, "gemma3").variants, expected.variants, strict=True):
        for name, array in variant.analysis.items():
            np.testing.assert_allclose(array, other.analysis[name], rtol=1e-3, atol=1e-5)


def test_equal_logits_rank_by_token_id() -> None:
    logits = torch.tensor([[[1.0, 3.0, 3.0, 2.0]]])
    ranks = [int(token_rank(logits, torch.tensor([token]))) for token in range(4)]
    assert ranks == [4, 1, 2, 3]


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_a_follow_up_is_answered_as_in_a_run_of_its_own(*, ignore_eos: bool) -> None:
    questions = ("Where was the harbour?", "How many ships?")
    request = replace(BASE, scenario="context-only", ignore_eos=ignore_eos)
    result = run(replace(request, follow_ups=questions))
    for number, question in enumerate(questions):
        alone = run(replace(request, question=question))
        for variant, fresh in zip(result.variants, alone.variants, strict=True):
            answer = variant.follow_ups[number]
            assert answer.question == question
            assert answer.token_ids == fresh.token_ids
            assert (answer.text, answer.token_texts) == (fresh.text, fresh.token_texts)
            assert answer.stopped == fresh.stopped
            assert answer.agreement == fresh.agreement
            assert answer.first_difference == fresh.first_difference


def test_follow_ups_come_one_question_at_a_time() -> None:
    request = replace(BASE, scenario="context-only", follow_ups=("One?", "Two?"))
    events = list(compare(request, tiny_model("llama")))
    counts = [len(e.follow_ups) for e in events if isinstance(e, FollowUpsAnswered)]
    assert counts == [1] * len(VARIANTS) + [2] * len(VARIANTS)
    assert any(isinstance(e, Progress) and e.stage == "analyse" for e in events)


def test_the_rest_of_a_run_does_not_depend_on_the_laboratory() -> None:
    plain, lab = run(replace(BASE, answer="")), analysed("llama", "regular")
    for variant, other in zip(plain.variants, lab.variants, strict=True):
        assert (variant.text, variant.token_ids) == (other.text, other.token_ids)
        assert variant.retained == other.retained
        assert not variant.analysis
        assert not variant.answer_scores
        if variant.perturbation is not None:
            assert other.perturbation is not None
            np.testing.assert_array_equal(variant.perturbation.head_l1, other.perturbation.head_l1)
            assert variant.perturbation.kl == other.perturbation.kl


def test_an_analysis_can_be_cancelled() -> None:
    is_stopped = False
    events = compare(replace(BASE, analysis=("greedy",)), tiny_model("llama"), lambda: is_stopped)
    for event in events:
        assert not isinstance(event, VariantAnalysed)
        if isinstance(event, Progress) and event.stage == "analyse":
            break
    is_stopped = True
    with pytest.raises(RunCancelledError):
        next(events)


def test_answer_scores_are_shares() -> None:
    from ckv_core.metrics.answers import answer_scores

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
