"""Attention Matching: its keys, biases and values against plain weights and NumPy."""

from typing import Any

import pytest
import torch

from ckv_core.engine.candidates import PromptLayer
from ckv_core.engine.compare import compare
from ckv_core.engine.further_passes import further_passes
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.engine.prompt import build_prompt, prompt_tokens
from ckv_core.engine.why import why
from ckv_core.errors import ConfigError
from ckv_core.methods.attention_matching import Matched, fitted
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.views import PromptTokens
from ckv_core.records.byte_budget import requested_bytes
from ckv_core.records.events import RunResult
from ckv_core.records.variants import VariantSpec
from ckv_core.records.work_requests import WhyRequest
from tests.factories.events import folded
from tests.factories.models import drained, plain_model, tiny_model, tiny_tokenizer
from tests.factories.tiny_runs import PlainRun, short_request
from tests.reference import attention_matching as literal
from tests.reference.checks import kept_of
from tests.reference.report import report
from tests.reference.selection import top_k

TEXT, RIDGE = report()[2000:2150], 1e-4
PARAMETERS = {"repeat": 64, "references": 120, "ridge": RIDGE}
SPEC = f"attention_matching:budget=40,repeat=64,references=120,ridge={RIDGE}"
ARCHITECTURES = ["llama", "gemma2", "gpt_oss"]  # plain, capped logits, sinks


def run(arch: str, *specs: str, **changes: Any) -> RunResult:
    asked = short_request("full", *specs, context=TEXT, **changes)
    return folded(compare(asked, tiny_model(arch)))


def given() -> PromptTokens:
    return prompt_tokens(tiny_tokenizer(), build_prompt(tiny_tokenizer(), TEXT, "", "context-only"))


def references(arch: str) -> list[Any]:
    asked = given()
    ids = (asked.encode, list(asked.token_ids), asked.lead, list(asked.closing))
    return literal.references(plain_model(arch), *ids, PARAMETERS)


def read(arch: str) -> Prefill:
    spec = VariantSpec.parse(SPEC)
    (wanted,) = spec.passes
    with torch.inference_mode():
        found = drained(prefill(tiny_model(arch), list(given().token_ids), Needs(8), lambda: False))
        list(further_passes(found, [(wanted, wanted.passes(given()))], lambda: False))
    return found


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_run_writes_what_a_full_cache_with_biases_and_fitted_values_writes(arch):
    result, logs = run(arch, SPEC), references(arch)
    plain, variant = PlainRun(arch, result), result.variants[1]
    kept = kept_of(result, variant)
    for layer, heads in enumerate(kept):
        for head, row in enumerate(heads or []):
            best = set(top_k(literal.scores(logs[layer], head, len(heads)), 40))
            assert len(best & {i for i, keep in enumerate(row) if keep}) >= 39
    cache, _, _ = plain.read()
    with literal.biased(plain.model, literal.match_kept(cache, kept, logs, RIDGE)):
        plain.check_tokens(variant, cache)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_biases_and_values_are_the_least_squares(arch):
    prefilled, logs = read(arch), references(arch)
    length = prefilled.prompt_len
    for layer in tiny_model(arch).info.evictable_layers:
        view = PromptLayer(prefilled, layer)
        seen = Matched().weights(view, PARAMETERS)
        places = list(range(3, length, 4))
        for head in range(view.kv_heads):
            bias, values = fitted(view.keys[head, places], seen[head], RIDGE)
            own = literal.of_kv_head(logs[layer], head, view.kv_heads)
            expected = literal.fit(own, view.values[head].double().numpy(), places, RIDGE)
            close = {"rtol": 1e-2, "atol": 1e-3}
            torch.testing.assert_close(bias, torch.tensor(expected[0]), **close)
            torch.testing.assert_close(values, torch.tensor(expected[1]), **close)


def test_a_bias_is_added_to_the_logits_and_what_is_kept_whole_stays():
    generator = torch.Generator().manual_seed(0)
    keys, values, queries = torch.randn(3, 2, 6, 8, generator=generator)
    whole = Matched().encode(keys, values, {"prompt_len": 6, "ridge": RIDGE}, torch.empty(2, 0, 19))
    assert not whole.bias.any()
    assert torch.equal(whole.values, values)
    whole.bias[:] = torch.randn(2, 6, generator=generator)
    out, total = whole.attend(queries, Scaling(0.5))
    logits = queries @ keys.transpose(1, 2) * 0.5 + whole.bias[:, None]
    torch.testing.assert_close(out, logits.softmax(-1) @ values)
    torch.testing.assert_close(total, logits.logsumexp(-1))
    assert whole.nbytes == 2 * Matched().head_bytes(6, 8, 4, {})


def test_the_receipt_counts_the_biases_and_says_that_entries_are_no_tokens():
    result = run("llama", SPEC, "attention_matching:budget=0.02MiB", "knorm:budget=40")
    _, own, bound, plain = result.variants
    width, heads = 2 * result.model.head_dim * 4, 3 * 2
    assert own.receipt.retained_entries == plain.receipt.retained_entries == 40 * heads
    assert own.receipt.cache_bytes == 40 * heads * (width + 4) == requested_bytes(result, own)
    assert 0.98 * requested_bytes(result, bound) <= bound.receipt.cache_bytes <= 0.02 * 2**20
    assert any("no tokens" in each for each in own.receipt.warnings)
    assert not any("no tokens" in each for each in plain.receipt.warnings)


def test_head_l1_is_not_known_where_entries_are_no_tokens():
    asked = short_request("full", SPEC, "knorm:budget=40", context=TEXT, analysis=("bounds",))
    _, own, plain = folded(compare(asked, tiny_model("llama"))).variants
    assert torch.tensor(own.perturbation.head_l1).isnan().all()
    assert not torch.tensor(plain.perturbation.head_l1).isnan().any()


def test_nothing_leaves_later_and_nothing_is_put_back():
    for extra in ("every=8,to=6", "prefill=blocks:64", "store=int8"):
        with pytest.raises(ConfigError):
            VariantSpec.parse(f"{SPEC},{extra}")
    for spec, key in ((f"{SPEC},every=8", "every"), ("attention_matching+critical", r"\+critical")):
        with pytest.raises(ConfigError, match=f"fitted to one another, so '{key}'"):
            VariantSpec.parse(spec)
    asked = short_request("full", SPEC, context=TEXT, answer="nothing")
    request = WhyRequest(run=asked, variant=SPEC, evidence=(TEXT[:20],))
    with pytest.raises(ConfigError, match="none can be put back"):
        list(why(request, tiny_model("llama")))
