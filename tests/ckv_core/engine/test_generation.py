"""Generation: texts grow at a constant cost, late tokens are the same, no number is passed over."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ckv_core.engine import generate
from ckv_core.engine import generation as module
from ckv_core.engine.compare import compare
from ckv_core.engine.decode import Decoder
from ckv_core.engine.generation import Generation
from ckv_core.errors import EngineError, RunCancelledError
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.events import Generated, RunResult
from ckv_core.records.records import VariantResult
from ckv_core.records.run_request import RunRequest
from tests.factories.models import tiny_model, tiny_tokenizer
from tests.factories.tiny_runs import short_request
from tests.reference.report import report


def words_tokenizer() -> PreTrainedTokenizerFast:
    """As of SentencePiece: the blank before a text's first word is dropped."""
    words = ["<unk>", "</s>", "\u2581the", "\u2581key", "s", "\u2581", ".", "\u2581is"]
    backend = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


TOKENIZERS = {"bytes": tiny_tokenizer(), "words": words_tokenizer()}


@pytest.mark.parametrize("name", list(TOKENIZERS))
@given(data=st.data())
def test_the_pieces_join_to_the_decoded_whole(name, data):
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), min_size=1, max_size=40))
    generation = Generation(tokenizer, 1, len(ids), frozenset())
    for token in ids:
        generation.append([token])
    assert generation.text(0) == tokenizer.decode(ids, skip_special_tokens=True)
    assert len(generation.token_texts(0)) == len(ids)


def test_a_step_decodes_no_more_tokens_the_longer_the_text_is(monkeypatch):
    tokenizer, decoded = tiny_tokenizer(), []
    decode = tokenizer.decode

    def counted(ids: list[int], **options: bool) -> str:
        decoded.append(len(ids))
        return decode(ids, **options)

    monkeypatch.setattr(tokenizer, "decode", counted)
    generation = Generation(tokenizer, 1, 300, frozenset())
    for token in tokenizer("the key of the house " * 20)["input_ids"][:300]:
        generation.append([token])
    assert len(generation.token_ids[0]) == 300
    assert max(decoded) <= 4


def test_updates_come_no_faster_than_a_page_can_show_them_and_the_last_at_once(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    generation = Generation(tiny_tokenizer(), 1, 2, frozenset())
    now[0] += 0.9 * module._INTERVAL_S
    assert not generation.due()
    now[0] += 0.2 * module._INTERVAL_S
    assert generation.due()
    generation.append([5])
    assert not generation.due()
    generation.append([5])
    assert generation.due()


VARIANTS = ("full", "snapkv", "adakv+critical", "tova", "h2o", "snapkv:every=6,to=4,window=3")


def request(**changes: Any) -> RunRequest:
    settings = {"context": report()[:300], "budgets": ("40",), "max_new_tokens": 14}
    return short_request(*VARIANTS, **settings | changes)


def run(
    asked: RunRequest, late: bool, monkeypatch: pytest.MonkeyPatch, **model: object
) -> tuple[list[VariantResult], Generated]:
    """The variants, and the last of what was streamed."""
    for each in (generate, module):
        monkeypatch.setattr(each, "fetches_late", lambda _device: late)
    result, streamed = RunResult(), []
    for event in compare(asked, replace(tiny_model("llama"), **model)):
        result.apply(event)
        streamed += [event] if isinstance(event, Generated) else []
    return result.variants, streamed[-1]


def told(variants: list[VariantResult]) -> list[tuple[object, ...]]:
    return [(v.token_ids, v.text, v.stopped, v.held, v.agreement, v.follow_ups) for v in variants]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scenario": "regular"},
        {"max_new_tokens": 1},
        {"max_new_tokens": 2},
        {"follow_ups": ("And who paid?",), "max_new_tokens": 5},
    ],
    ids=lambda changes: ",".join(map(str, changes)) or "plain",
)
def test_late_tokens_are_the_same(changes, monkeypatch):
    at_once, late = (run(request(**changes), late, monkeypatch)[0] for late in (False, True))
    assert told(late) == told(at_once)


def test_a_row_that_ends_takes_nothing_of_the_step_it_was_in_for(monkeypatch):
    """Rows end one after another; texts, ends and what policies held are as without."""
    free, _ = run(request(), False, monkeypatch)
    ends = frozenset(variant.token_ids[3 + at] for at, variant in enumerate(free))
    (at_once, shown), (late, shown_late) = (
        run(request(ignore_eos=False), late, monkeypatch, eos_token_ids=ends)
        for late in (False, True)
    )
    assert told(late) == told(at_once)
    assert shown == shown_late
    lengths = {len(variant.token_ids) for variant in at_once}
    assert len(lengths) > 1
    assert "eos" in {variant.stopped for variant in at_once}
    for variant in late:
        assert variant.held is None or len(variant.held.entries) in lengths


def test_a_late_run_is_cancelled_within_a_step(monkeypatch):
    for each in (generate, module):
        monkeypatch.setattr(each, "fetches_late", lambda _device: True)
    seen: list[Any] = []

    def stop() -> bool:
        return any(isinstance(event, Generated) for event in seen)

    with pytest.raises(RunCancelledError):
        seen.extend(compare(request(), tiny_model("llama"), stop))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tokens_arrive_from_a_device():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    chosen = module.Chosen(logits.cuda())
    chosen.keep_rows([3, 1])
    assert chosen.tokens.tolist() == chosen.read() == logits.argmax(-1)[[3, 1]].tolist()


# --- numbers that are none ----------------------------------------------------------------


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_tokens_of_logits_that_are_not_finite_are_refused(wrong):
    logits = torch.zeros(2, 5)
    logits[1, 3] = 1.0
    assert module.next_tokens(logits) == [0, 3]
    logits[1, 2] = wrong
    chosen = module.Chosen(logits)  # told when the token arrives
    with pytest.raises(EngineError, match="not finite"):
        chosen.read()


def broken(part: str) -> LoadedModel:
    """A model of which one number is NaN."""
    loaded = tiny_model.__wrapped__("llama")
    with torch.no_grad():
        loaded.model.get_parameter(part)[0] = torch.nan
    return loaded


@pytest.mark.parametrize("part", ["model.norm.weight", "model.layers.1.input_layernorm.weight"])
@pytest.mark.parametrize("new_tokens", [1, 4])
def test_one_nan_weight_fails_the_run(part, new_tokens):
    asked = short_request("snapkv:budget=40", "full", max_new_tokens=new_tokens)
    seen = []
    with pytest.raises(EngineError, match="not finite"):
        seen.extend(compare(asked, broken(part)))
    assert not any("Finished" in type(event).__name__ for event in seen)


def test_the_full_caches_text_read_by_a_variant_that_overflows_fails_the_run(monkeypatch):
    feed_all = Decoder.feed_all

    def overflowing(self: Decoder, token_ids: torch.Tensor, **of_step: bool) -> torch.Tensor:
        logits = feed_all(self, token_ids, **of_step)
        if not of_step:
            logits[0, -1, 5] = torch.inf
        return logits

    monkeypatch.setattr(Decoder, "feed_all", overflowing)
    asked = short_request("snapkv:budget=40", "full", analysis=("forced",))
    with pytest.raises(EngineError, match="not finite"):
        list(compare(asked, tiny_model("llama")))
