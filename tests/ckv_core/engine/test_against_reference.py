"""The engine against the slow reference: tiny models in every method and parameter, a real one."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ckv_core import cli
from ckv_core.models.default_model import prepare_default_model
from ckv_core.records.codec import from_json
from ckv_core.records.run_request import SCENARIOS, RunRequest, Scenario
from tests.factories.models import ARCHITECTURES, HYBRID
from tests.factories.tiny_runs import reference, run
from tests.reference.checks import L1_TOLERANCE, check_run
from tests.reference.comparison import Reference, build_prompt
from tests.reference.forward import head_l1
from tests.reference.keep import METHODS, kept_sets
from tests.reference.report import ANSWER, QUESTION, report

# Every parameter away from its default at least once, in company and alone.
PARAMETERS = (
    "snapkv:preset=kvpress,window=16",
    "snapkv+critical:preset=kvpress,window=16",
    "adakv+critical:preset=kvpress,window=20,sinks=3",
    "snapkv+critical:alpha=0,window=8,kernel=1",
    "snapkv+critical:alpha=1,window=8,pool=none",
    "snapkv+critical:alpha=0.57,norm=off,group=max",
    "snapkv+critical:stage2=pooled,group=max,kernel=3",
    "snapkv+critical:product=group,epsilon=0.01",
    "snapkv+critical:product=group,group=max,sinks=5",
    "pyramidkv+critical:beta=1.5,sinks=2,window=9,budget=13",
    "pyramidkv:beta=3,budget=70%",
    "adakv:safeguard=0,window=5,budget=25",
    "adakv+critical:safeguard=1,sinks=1,pool=avg,kernel=9",
    "adakv:budget=33",
    "streaming_llm:sinks=0,budget=7",
    "streaming_llm:sinks=7,budget=7",
    "keydiff:keep_question=off",
    "snapkv:budget=32",
)
TEXT = report()[2000:2250]


def tiny_request(scenario: Scenario, variants: tuple[str, ...]) -> RunRequest:
    return RunRequest(
        context=TEXT,
        question="Who counted the vessels?",
        scenario=scenario,
        variants=variants,
        budgets=("48",),
        max_new_tokens=9,
        ignore_eos=True,
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("arch", [*ARCHITECTURES, "mha"])
def test_tiny_models_agree_with_the_reference(arch, scenario):
    check_all(arch, tiny_request(scenario, METHODS))


@pytest.mark.parametrize(("arch", "scenario"), [*zip(HYBRID, SCENARIOS, strict=True)])
def test_only_the_layers_with_attention_are_evicted_beside_linear_ones(arch, scenario):
    check_all(arch, tiny_request(scenario, ("full", "snapkv", "adakv+critical")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "scenario"), [("qwen3", "regular"), ("gemma3", "context-only"), ("mha", "regular")]
)
def test_every_parameter_agrees_with_the_reference(arch, scenario):
    check_all(arch, tiny_request(scenario, ("full", *PARAMETERS[:8])))
    check_all(arch, replace(tiny_request(scenario, PARAMETERS[8:]), max_new_tokens=1))


def check_all(arch: str, asked: RunRequest) -> None:
    result = run(asked, arch)
    check_run(reference(arch, result, asked), result, asked.max_new_tokens)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_budget_of_everything_evicts_nothing_and_says_so(scenario):
    variants = ("full", "snapkv+critical:budget=5000", "adakv:budget=100%")
    result = run(tiny_request(scenario, variants), "llama")
    for variant in result.variants[1:]:
        assert variant.retained.mask().all()
        assert variant.token_ids == result.variants[0].token_ids
        # the same sums in another order: float32 roundings of a residual stream of length 64
        assert variant.perturbation.layer_hidden_l1.max() < 1e-2
        assert variant.perturbation.head_l1.max() < 1e-3
        assert variant.receipt.warnings


# --- the default model, through the command line ---------------------------------------------

# The tiny models have every method in both; here the question is what their size hides.
REAL_VARIANTS: dict[Scenario, tuple[str, ...]] = {
    "regular": ("full", "adakv+critical"),
    "context-only": ("full", "pyramidkv+critical"),
}
REAL_TOKENS, BUDGET = 12, 128
# The part about the pump house and what is around it, as short as the budget allows.
START = report().index(ANSWER) - 700
REAL_TEXT = report()[START : START + 1300]


@pytest.fixture(scope="module")
def plain() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The default model with transformers' own attention and tokenizer."""
    folder = prepare_default_model(lambda _line: None)
    eager = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    return eager.eval(), AutoTokenizer.from_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", REAL_VARIANTS)
def test_the_real_model_agrees_with_the_reference(
    real_model, plain, tmp_path, monkeypatch, scenario
):
    (model, tokenizer), out = plain, tmp_path / "out.json"
    monkeypatch.setattr("ckv_core.models.loading.load_model", lambda *_, **__: real_model)
    (tmp_path / "report.txt").write_text(REAL_TEXT, "utf-8")
    asked = f"--scenario {scenario} --budget {BUDGET} --max-new-tokens {REAL_TOKENS} --ignore-eos"
    files = ["--context", str(tmp_path / "report.txt"), "--json", str(out)]
    variants = [part for spec in REAL_VARIANTS[scenario] for part in ("--variant", spec)]
    assert cli.main(["compare", *asked.split(), "--question", QUESTION, *files, *variants]) == 0
    result = from_json(json.loads(out.read_text("utf-8")))
    prompt = build_prompt(tokenizer, REAL_TEXT, QUESTION, scenario)
    assert len(prompt.token_ids) >= 2 * BUDGET
    names = [v.method + ("+critical" if v.critical else "") for v in result.variants]
    assert names == list(REAL_VARIANTS[scenario])
    assert ANSWER[:2] in result.variants[0].text, "the full cache should find the needle"
    slow = Reference.prefill(model, prompt, [dict(v.params) for v in result.variants])
    check_run(slow, result, REAL_TOKENS)
    # An entry that changed places at the cut may move its head by more than the tolerance;
    # the layers' sums may not.
    for variant in result.variants[1:]:
        own = kept_sets(slow.prefilled, variant.method, variant.critical, dict(variant.params))
        expected = np.array(head_l1(model, *slow.full_step[:2], own)).sum(1)
        found = variant.perturbation.head_l1.sum(1)
        assert found.tolist() == pytest.approx(expected.tolist(), rel=L1_TOLERANCE)
