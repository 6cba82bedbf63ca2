"""The engine against the slow reference: tiny models in every method and parameter."""

from dataclasses import replace

import pytest

from ckv_core.request.compare_request import SCENARIOS, CompareRequest, Scenario
from tests.factories.models import ARCHITECTURES
from tests.factories.tiny_runs import reference, run
from tests.reference.checks import check_run
from tests.reference.keep import METHODS
from tests.reference.report import report

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
    "snapkv:budget=32",
)
TEXT = report()[2000:2250]


def tiny_request(scenario: Scenario, variants: tuple[str, ...]) -> CompareRequest:
    return CompareRequest(
        context=TEXT,
        question="Who counted the vessels?",
        scenario=scenario,
        variants=variants,
        defaults={"budget": "48"},
        max_new_tokens=9,
        ignore_eos=True,
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("arch", [*ARCHITECTURES, "mha"])
def test_tiny_models_agree_with_the_reference(arch, scenario):
    check_all(arch, tiny_request(scenario, METHODS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "scenario"),
    [
        ("llama", "regular"),
        ("qwen3", "context-only"),
        ("gemma3", "context-only"),
        ("mha", "regular"),
    ],
)
def test_every_parameter_agrees_with_the_reference(arch, scenario):
    check_all(arch, tiny_request(scenario, ("full", *PARAMETERS[:8])))
    check_all(arch, replace(tiny_request(scenario, PARAMETERS[8:]), max_new_tokens=1))


def check_all(arch: str, asked: CompareRequest) -> None:
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
