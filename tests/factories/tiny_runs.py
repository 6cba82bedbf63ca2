"""Runs of the diagnostics on tiny models, made once and shared by its tests."""

from dataclasses import replace
from functools import cache

from ckv_core.compare.compare import compare
from ckv_core.request.compare_request import CompareRequest, Scenario
from ckv_core.results.events import RunResult
from ckv_core.results.records import VariantResult
from tests.factories.models import plain_model, tiny_model
from tests.reference.checks import kept_from_mask
from tests.reference.comparison import Reference
from tests.reference.forward import Kept
from tests.reference.prompt import build_prompt
from tests.reference.report import report

VARIANTS = (
    "full",
    "snapkv",
    "snapkv+critical:sinks=3",
    "adakv+critical:alpha=0.6",
    "pyramidkv:beta=3",
    # The second stage by another score than the bound's own, or every alpha would be 0.
    "snapkv+critical_auto:stage2=pooled,pool=avg",
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
