"""KVzip against plain passes of the model: statistic, kept sets, cost, cancelling, limits."""

from typing import Any

import pytest
import torch

from ckv_core.comparison.compare import compare
from ckv_core.engine import prefill as engine_prefill
from ckv_core.engine.further_passes import further_passes
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.prompt import build_prompt, prompt_tokens
from ckv_core.errors import PromptError, RunCancelledError
from ckv_core.methods.kvzip import Reconstruction
from ckv_core.methods.parts.views import PromptShape, PromptTokens, statistic_bytes
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.compare_request import SCENARIOS, CompareRequest, Scenario
from ckv_core.request.variants import VariantSpec
from ckv_core.results.events import Progress, RunResult
from tests.factories.models import drained, plain_model, tiny_model, tiny_tokenizer
from tests.factories.tiny_runs import short_request
from tests.reference import kvzip as literal
from tests.reference.prompt import build_prompt as literal_prompt
from tests.reference.report import report

CLOSE = {"rtol": 2e-4, "atol": 1e-5}
TEXT = report()[2000:2150]
PARAMETERS = (
    {"repeat": 64, "lead": "first", "sinks": 4},
    {"repeat": 100, "lead": "last", "sinks": 3},
)


def read(
    loaded: LoadedModel, given: PromptTokens, parameters: dict[str, Any]
) -> tuple[Prefill, Any]:
    scorer = VariantSpec.parse("kvzip").scorer
    (wanted,) = scorer.passes(parameters)
    with torch.inference_mode():
        result = drained(prefill(loaded, list(given.token_ids), Needs(8), lambda: False))
        list(further_passes(result, [(wanted, wanted.passes(given))], lambda: False))
    return result, wanted


def given_tokens(scenario: Scenario = "context-only") -> PromptTokens:
    prompt = build_prompt(tiny_tokenizer(), TEXT, "Who waved?", scenario)
    return prompt_tokens(tiny_tokenizer(), prompt)


def repeated(arch: str, given: PromptTokens, parameters: dict[str, Any]) -> list[torch.Tensor]:
    """The literal statistic, by layer."""
    prompt = (given.encode, list(given.token_ids), given.lead, list(given.closing))
    return literal.repeated(plain_model(arch), *prompt, parameters)


@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda parameters: parameters["lead"])
@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3"])
def test_the_statistic_is_that_of_plain_passes(arch, parameters, monkeypatch):
    """Passes read in one chunk and in several; of gemma3 two layers slide."""
    loaded, given = tiny_model(arch), given_tokens()
    expected = repeated(arch, given, parameters)
    for chunk in (1024, 48):
        monkeypatch.setattr(engine_prefill, "CHUNK", chunk)
        result, wanted = read(loaded, given, parameters)
        found = result.observed[wanted.key]
        assert tuple(found) == loaded.info.evictable_layers
        for layer, statistic in found.items():
            torch.testing.assert_close(statistic, expected[layer], **CLOSE)
            assert statistic[:, given.lead :].amax() <= 1
        held = sum(statistic.nbytes for statistic in found.values())
        assert held == statistic_bytes(wanted, _shape(loaded, given))


def _shape(loaded: LoadedModel, given: PromptTokens) -> PromptShape:
    info = loaded.info
    return PromptShape(
        len(info.evictable_layers),
        info.query_heads,
        info.kv_heads,
        info.head_dim,
        len(given.token_ids),
    )


def test_passes_repeat_every_token_behind_the_lead_once():
    given = given_tokens()
    passes = Reconstruction(64, None).passes(given)
    rebuilt = [
        token for one in passes for token in one.token_ids[-(one.part.stop - one.part.start) :]
    ]
    assert tuple(rebuilt) == given.token_ids[given.lead :]
    assert given.lead == len("<|im_start|>user\n") - len("<|im_start|>") + 1


@pytest.mark.parametrize(("lead", "sinks"), [("first", None), ("last", 4)])
def test_a_later_pass_asks_in_the_words_of_the_authors_or_of_kvpress(lead, sinks):
    given = given_tokens()
    later = Reconstruction(64, sinks).passes(given)[1]
    text = tiny_tokenizer().decode(later.token_ids)
    overlap = tiny_tokenizer().decode(given.token_ids[: later.part.start][-8:])
    assert text.startswith(f"{literal.NEXT[lead]}{overlap}<|im_end|>\n<|im_start|>assistant\n")


def request(scenario: Scenario, *variants: str, **changes: Any) -> CompareRequest:
    settings = {"context": TEXT, "question": "Who waved?", "defaults": {"budget": "40"}}
    return short_request(*variants, scenario=scenario, max_new_tokens=3, **settings | changes)


def run(asked: CompareRequest, prefills: PrefillCache | None = None, arch: str = "llama") -> Any:
    result, told = RunResult(), []
    for event in compare(asked, tiny_model(arch), prefills=prefills):
        result.apply(event)
        if isinstance(event, Progress) and event.detail.startswith("further"):
            told.append(event)
    return result, told


@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda parameters: parameters["lead"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_keeps_the_best_of_all_layers_and_heads(scenario, parameters):
    spec = "kvzip:" + ",".join(f"{key}={value}" for key, value in parameters.items())
    (variant,) = run(request(scenario, spec))[0].variants
    behind = literal_prompt(tiny_tokenizer(), TEXT, "Who waved?", scenario).behind
    given = given_tokens(scenario)
    scores = repeated("llama", given, parameters)
    grouped = [each.view(2, 2, -1).amax(1).tolist() for each in scores]
    expected = literal.kept(grouped, parameters["sinks"], behind, 40)
    found = {tuple(place) for place in torch.tensor(variant.retained.mask()).nonzero().tolist()}
    assert len(found) == len(expected) == 3 * 2 * 40
    assert len(found & expected) >= 0.99 * len(expected)


def test_a_question_changes_nothing_that_is_kept_of_the_context():
    asked = [request("context-only", "kvzip:repeat=64", question=q) for q in ("Who?", "Why so?")]
    one, other = (run(each)[0].variants[0].retained for each in asked)
    assert one == other


def test_passes_are_told_and_made_once():
    prefills = PrefillCache(2**30)
    both = request("context-only", "kvzip:repeat=64", "kvzip:repeat=64,lead=last")
    _, told = run(both, prefills)
    count = len(Reconstruction(64, None).passes(given_tokens()))
    assert len(told) == 2 * count
    assert told[-1].fraction == 1.0
    assert [each.fraction for each in told] == sorted(each.fraction for each in told)
    again, told = run(request("context-only", "kvzip:repeat=64,budget=60"), prefills)
    assert not told
    assert again.timings_ms["prefill"] == 0
    _, told = run(request("context-only", "kvzip:repeat=65"), prefills)
    assert told, "a prefill that lacks only further passes is not read anew, but they are"


def test_a_cancelled_pass_leaves_no_half_statistic():
    given, wanted = given_tokens(), Reconstruction(64, None)
    stop = iter([False] * 8)
    with torch.inference_mode():
        result = drained(
            prefill(tiny_model("llama"), list(given.token_ids), Needs(8), lambda: False)
        )
        work = further_passes(result, [(wanted, wanted.passes(given))], lambda: next(stop, True))
        with pytest.raises(RunCancelledError):
            list(work)
    assert not result.observed


def test_passes_over_the_models_limit_are_refused_with_what_helps():
    asked = request("context-only", "kvzip", context=TEXT * 8)
    with pytest.raises(PromptError, match=r"over the model's limit of 2,048. Lower 'repeat'"):
        run(asked)


def test_the_estimate_counts_the_passes():
    plain, _ = run(request("context-only", "knorm"))
    with_passes, _ = run(request("context-only", "kvzip"))
    assert with_passes.memory["prefill_peak"] > plain.memory["prefill_peak"]  # what is gathered
    assert with_passes.memory["total"] >= with_passes.memory["prefill_peak"]
