"""Runs on tiny models, and plain transformers' way over the same tokens."""

from dataclasses import replace
from functools import cache
from typing import Any

from torch import Tensor
from transformers import DynamicCache

from ckv_core.engine.compare import compare
from ckv_core.records.events import RunResult
from ckv_core.records.records import VariantResult
from ckv_core.records.run_request import RunRequest, Scenario
from tests.factories.events import folded
from tests.factories.models import plain_model, tiny_model
from tests.reference.checks import kept_of
from tests.reference.comparison import Reference, build_prompt
from tests.reference.evicting_methods import Beginning
from tests.reference.forward import Held, LiteralPolicy, Tap, decode, evictable_layers, forward
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
BASE = RunRequest(
    context=report()[2000:2200],
    question="Who counted the vessels?",
    variants=VARIANTS,
    budgets=("48",),
    max_new_tokens=9,
    ignore_eos=True,
)


def run(request: RunRequest, arch: str = "llama") -> RunResult:
    result = folded(compare(request, tiny_model(arch)))
    assert result.finished
    return result


@cache
def analysed(arch: str, scenario: Scenario) -> RunResult:
    analysis = ("bounds", "forced")
    return run(replace(BASE, scenario=scenario, analysis=analysis), arch)


def reference(arch: str, result: RunResult, asked: RunRequest = BASE) -> Reference:
    """Of the run that was asked for, in the run's scenario."""
    tokenizer = tiny_model(arch).tokenizer
    prompt = build_prompt(tokenizer, asked.context, asked.question, result.prompt.scenario)
    params = [dict(variant.params) for variant in result.variants]
    return Reference.prefill(plain_model(arch), prompt, params)


# --- a short run, and each of its variants once more on a masked full cache ------------------


def short_request(*variants: str, **changes: Any) -> RunRequest:
    """A prompt of some 170 tokens."""
    settings = {
        "context": report()[:150],
        "question": "What?",
        "scenario": "context-only",
        "max_new_tokens": 9,
        "ignore_eos": True,
    }
    return RunRequest(variants=variants, **settings | changes)


class PlainRun:
    """What plain transformers needs to go over a run's tokens."""

    def __init__(self, arch: str, result: RunResult) -> None:
        self.result, self.model, self.info = result, plain_model(arch), tiny_model(arch).info
        ids = list(result.prompt.token_ids)
        self.compressed = ids[: result.prompt.compressed_tokens]
        self.question = ids[len(self.compressed) :]

    def read(self) -> tuple[DynamicCache, Tap, Tensor]:
        """The compressed prompt's full cache, its attention and its last logits."""
        cache, tap = DynamicCache(config=self.model.config), Tap(rows=len(self.compressed))
        return cache, tap, forward(self.model, self.compressed, cache, tap=tap)

    def begun(self, begin: Beginning, tap: Tap) -> dict[int, Held]:
        """What a literal method keeps of the prompt, by layer."""
        layers = evictable_layers(self.model)
        return {at: begin(at, tap.attention[at], self.info.kv_heads) for at in layers}

    def check_tokens(
        self, variant: VariantResult, cache: DynamicCache, policy: LiteralPolicy | None = None
    ) -> list[Held | None]:
        """That a masked full cache writes the variant's tokens; what is held at the end."""
        kept, tokens = kept_of(self.result, variant), list(variant.token_ids)
        policy = policy or (lambda _step, _layer, held, _attention: held)
        logits, held = decode(self.model, cache, kept, self.question, tokens, policy)
        assert [int(each.argmax()) for each in logits[:-1]] == tokens[1:]
        return held
