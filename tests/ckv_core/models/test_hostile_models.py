"""Configs that lie or name code, and weights that changed: refused before a model is built."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ckv_core.base.home import models_folder
from ckv_core.errors import ModelError, RunCancelledError
from ckv_core.models import default_model, loading
from ckv_core.models.attention import ATTENTION_NAME
from ckv_core.models.geometry import context_limit
from ckv_core.models.loading import load_model
from ckv_core.models.steps import STEP_S, Step
from tests.ckv_core.models.tiny_gguf import write_tiny_gguf
from tests.factories.models import saved_model, tiny_config

pytestmark = pytest.mark.slow

BUILT = "a model was built"


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(saved_model(tmp_path / "model"))


@pytest.fixture
def gguf(tmp_path) -> Path:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


def change(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 100_000_000}, "num_hidden_layers 100,000,000, more than"),
        ({"num_hidden_layers": "DIGITS"}, "of more than 38 digits"),
        ({"num_hidden_layers": 1_999}, "1,999 layers and the weights hold 3"),
        ({"num_hidden_layers": 2}, "2 layers and the weights hold 3"),
        ({"hidden_size": 2**20}, "hidden size of 1,048,576"),
        ({"vocab_size": 10**8}, "vocabulary of 100,000,000"),
        ({"text_config": {"num_hidden_layers": 10**9}}, "more than the 2,000"),
        ({"intermediate_size": 10**8}, "asks for"),
        ({"padding": "x" * (16 * 2**20)}, "larger than any model's"),
    ],
)
def test_a_config_that_lies_is_refused_before_a_model_is_built(folder, changes, words, monkeypatch):
    change(folder, **changes)
    path = folder / "config.json"  # json writes no number of so many digits by itself
    path.write_text(path.read_text().replace('"DIGITS"', "1" + "0" * 4000))
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail(BUILT)
    )
    with pytest.raises(ModelError, match=words) as caught:
        load_model(str(folder), "cpu")
    assert "\n" not in str(caught.value)


def test_a_gguf_that_lies_is_refused_before_it_is_converted(gguf):
    data = gguf.read_bytes()
    key = b"llama.block_count"
    at = data.index(key) + len(key) + 4  # a type, then the number
    gguf.write_bytes(data[:at] + (1_500).to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(ModelError, match="1,500 layers and the weights hold 2"):
        load_model(str(gguf), "cpu")
    assert not (models_folder() / ".converted").exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_attention_that_a_config_names_is_never_fetched(folder, key, monkeypatch):
    loader = "transformers.modeling_utils.lazy_import_flash_attention"
    monkeypatch.setattr(loader, lambda *_, **__: pytest.fail("kernels were asked for"))
    change(folder, **{key: "somebody/kernels", "experts_implementation": "somebody/kernels"})
    loaded = load_model(str(folder), "cpu")
    assert loaded.model.config._attn_implementation == ATTENTION_NAME


def test_each_step_says_how_long_it_may_take_and_weights_tell_how_far_they_are(folder):
    steps: list[Step] = []
    load_model(str(folder), "cpu", report=steps.append)
    before = [step for step in steps if "config" in step.sentence]
    assert len(before) == 2
    assert all(step.limit_s == STEP_S for step in before)
    fractions = [step.fraction for step in steps if "tensors" in step.sentence]
    assert fractions
    assert all(step.limit_s > 0 for step in steps)


def test_what_the_report_raises_stops_the_reading_of_weights(folder):
    def stop(step: Step) -> None:
        if "tensors" in step.sentence:
            raise RunCancelledError

    with pytest.raises(RunCancelledError):
        load_model(str(folder), "cpu", report=stop)
    assert load_model(str(folder), "cpu").info.layers == 3


def rewrite(path: Path) -> None:
    weights = load_file(path)
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1
    save_file(weights, path, {"format": "pt"})
    os.utime(path, ns=(1, 1))  # the clock may be too coarse to show the write


def test_weights_that_changed_since_they_were_loaded_are_noticed_once(folder):
    first = load_model(str(folder), "cpu").info.sha256
    rewrite(folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.safetensors changed.*load the model once more"):
        load_model(str(folder), "cpu")
    assert load_model(str(folder), "cpu").info.sha256 != first


def test_a_damaged_file_of_the_hubs_cache_is_named_with_what_to_delete(
    folder, tmp_path, monkeypatch
):
    blob = tmp_path / "blobs" / ("0" * 64)
    blob.parent.mkdir()
    (folder / "model.safetensors").rename(blob)
    (folder / "model.safetensors").symlink_to(blob)
    monkeypatch.setattr(default_model, "snapshot_download", lambda *_, **__: str(folder))
    with pytest.raises(ModelError, match=f"not the published one. Delete {blob}"):
        load_model("org/model", "cpu")


def test_a_gguf_is_converted_once_unless_the_conversion_changed_on_disk(gguf, monkeypatch):
    first = load_model(str(gguf), "cpu")
    kept = models_folder() / ".converted" / first.info.sha256 / "model.safetensors"
    whole = kept.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("ckv_core.models.loading.convert_gguf", lambda *_: pytest.fail(BUILT))
        again = load_model(str(gguf), "cpu")
    assert again.info == first.info
    embeddings = (each.model.get_input_embeddings().weight for each in (again, first))
    assert torch.equal(*embeddings)
    rewrite(kept)
    load_model(str(gguf), "cpu")
    assert kept.read_bytes() == whole


def test_a_conversion_without_room_says_how_much_it_needs(gguf, monkeypatch):
    usage = type(loading.shutil.disk_usage(gguf))
    monkeypatch.setattr(loading.shutil, "disk_usage", lambda _: usage(10, 10, 0))
    with pytest.raises(ModelError, match=r"takes .* KiB once it is dequantised"):
        load_model(str(gguf), "cpu")


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 2048),
        ({"rope_type": "yarn", "factor": 2.0}, 4096),
        ({"rope_type": "linear", "factor": 4.0}, 2048),
        ({"rope_type": "default"}, 2048),
    ],
)
def test_yarn_stretches_the_context_limit(rope, limit):
    config = tiny_config("llama", rope_parameters={"rope_theta": 10000.0, **rope})
    assert context_limit(config) == limit
