"""Incremental detokenisation: the pieces join to the whole text, at a cost that does not grow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ckv_core.engine import generation as module
from ckv_core.engine.generation import Generation
from tests.factories.models import tiny_tokenizer


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
