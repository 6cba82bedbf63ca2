"""Quantities of the measured step on tiny models, against a literal float64 computation."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ckv_core.config import Scenario
from ckv_core.engine.compare import compare
from ckv_core.errors import RunCancelledError
from ckv_core.events import Progress, VariantAnalysed
from ckv_core.quantities import QUANTITIES
from ckv_core.records import VariantResult
from tests.core.laboratory_runs import BASE, SCENARIOS, analysed, kept_of, reference, run
from tests.core.tiny_models import plain_model, tiny_model
from tests.reference.comparison import Reference
from tests.reference.forward import Tap
from tests.reference.scores import (
    first_stage_score,
    layer_values,
    output_weight,
    window_mean,
)


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
            alpha = float(variant.params.get("alpha", 0.25))
            first, fixed = stage_one_sets(slow, variant, layer, mask, alpha)
            check_stage_one(found, layer, heads, (keep, heads.keep(first)))
            tail = torch.ones(keep.shape[1] - len(fixed), dtype=torch.bool)
            check_oracles(found, layer, heads, keep, torch.cat([fixed, tail]))


def check_distances(
    found: Mapping[str, np.ndarray], layer: int, suffix: str, whole: Tensor, moved: Tensor
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


def check_masses(found: Mapping[str, np.ndarray], layer: int, heads: Heads, keep: Tensor) -> None:
    norms = heads.projected.abs().sum(-1)
    weighted = heads.attention * norms
    sigma = (heads.attention * keep).sum(-1)
    theta = weighted.sum(-1) - (2 - 1 / sigma) * (weighted * keep).sum(-1)
    close = {"rtol": 2e-3, "atol": 2e-3}
    np.testing.assert_allclose(found["sigma_kept"][layer], sigma, **close)
    np.testing.assert_allclose(found["value_mass"][layer], weighted.sum(-1), **close)
    np.testing.assert_allclose(found["theta"][layer], theta, **close)


def check_stage_one(
    found: Mapping[str, np.ndarray], layer: int, heads: Heads, sets: tuple[Tensor, Tensor]
) -> None:
    """Sigma, theta-hat and its relaxed form, with N and N' [query_heads, entries]."""
    keep, first = sets
    norms = heads.projected.abs().sum(-1)
    weighted = heads.attention * norms
    sigma = (heads.attention * first).sum(-1)
    factor, second = 2 - 1 / sigma, keep & ~first
    rest = weighted.sum(-1) - factor * (weighted * first).sum(-1)
    hat = rest - factor * (weighted * second).sum(-1)
    relaxed = rest - factor * norms.amin(-1) * (heads.attention * second).sum(-1)
    close = {"rtol": 5e-3, "atol": 5e-3}
    np.testing.assert_allclose(found["sigma_stage1"][layer], sigma, **close)
    np.testing.assert_allclose(found["theta_hat"][layer], hat, **close)
    np.testing.assert_allclose(found["theta_relaxed"][layer], relaxed, **close)
    for head, (attention, marked) in enumerate(zip(heads.attention, first, strict=True)):
        largest = attention.sort(descending=True).values[: int(marked.sum())].sum()
        assert found["sigma_oracle"][layer, head] == pytest.approx(float(largest), abs=1e-4)


def check_oracles(
    found: Mapping[str, np.ndarray], layer: int, heads: Heads, keep: Tensor, fixed: Tensor
) -> None:
    """Head L1 of the sets of largest group mean, `fixed` [entries] bool kept in any case."""
    whole = heads.output(torch.ones_like(keep))
    weighted = heads.attention * heads.projected.abs().sum(-1)
    for name, score in (("attention", heads.attention), ("critical", weighted)):
        best = torch.zeros_like(keep)
        for head in range(0, len(keep), heads.group):
            mean = score[head : head + heads.group].mean(0).tolist()
            order = sorted(range(len(mean)), key=lambda i: (not fixed[i], -mean[i], i))
            best[head : head + heads.group, order[: int(keep[head].sum())]] = True
        losses = (whole - heads.output(best)).abs().sum(-1)
        np.testing.assert_allclose(found[f"oracle_{name}_l1"][layer], losses, rtol=0.02, atol=5e-3)


def stage_one_sets(
    slow: Reference, variant: VariantResult, layer: int, kept: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """N' of one layer, [kv_heads, compressed], and what the variant never drops, [compressed]."""
    n, params = kept.shape[1], dict(variant.params)
    sinks, window = int(params["sinks"]), int(params.get("window", 0))
    fixed = torch.tensor([i < sinks or i >= n - window for i in range(n)])
    if bool(kept.all()):
        return kept, fixed
    if window:
        attention = window_mean(slow.prefilled.tap.attention[layer], window)
        scores = first_stage_score(attention, slow.prefilled.group_size, params)
    else:
        scores = [[float(i) for i in range(n)]] * len(kept)
    first = fixed.expand_as(kept).clone()
    for head, row in enumerate(scores):
        count = math.floor(alpha * int((kept[head] & ~fixed).sum()) + 1e-9)
        order = sorted((i for i in range(n) if not fixed[i]), key=lambda i: (-row[i], i))
        first[head, order[:count]] = True
    return first, fixed


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
