"""Names, folders, devices and types: what loads, and what is refused by name in one sentence."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from ckv_core.base.home import models_folder
from ckv_core.cli import main
from ckv_core.engine.compare import compare
from ckv_core.errors import ConfigError, ModelError, RunCancelledError
from ckv_core.models import default_model, steps
from ckv_core.models.checkpoint import find_checkpoint
from ckv_core.models.geometry import check_config, read_geometry
from ckv_core.models.loaded import LoadedModel, wrap_model
from ckv_core.models.loading import load_model
from ckv_core.models.steps import Report, Step
from ckv_core.records.codec import from_json
from ckv_core.records.run_request import RunRequest
from tests.ckv_core.models.tiny_gguf import read_gguf_weights, write_tiny_gguf
from tests.factories.events import folded
from tests.factories.models import (
    ARCHITECTURES,
    HYBRID,
    SLIDING,
    load_tokenizer,
    plain_model,
    saved_model,
    tiny_config,
    tiny_model,
    tiny_tokenizer,
)

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path) -> Path:
    """A local safetensors checkpoint in bfloat16."""
    path = tmp_path / "my-model"
    model = AutoModelForCausalLM.from_config(tiny_config("qwen3"), dtype=torch.bfloat16)
    model.save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


# Maps that lie in one product, in order.
_JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def _weight(loaded: LoadedModel, name: str, rows: dict[str, int]) -> torch.Tensor:
    """A weight by its name in the checkpoint; packed maps unpack theirs, joined ones are parted.

    `rows` are those of every weight in the checkpoint.
    """
    part, _, kind = name.rpartition(".")
    holder, _, own = part.rpartition(".")
    module = loaded.model.get_submodule(holder)
    for joined, names in _JOINED.items():
        if own in names and hasattr(module, joined):
            sizes = [rows[f"{holder}.{each}.{kind}"] for each in names]
            parts = getattr(getattr(module, joined), kind).split(sizes)
            return parts[names.index(own)]
    found: torch.Tensor = getattr(loaded.model.get_submodule(part), kind)
    return found


def _rows(saved: dict[str, torch.Tensor]) -> dict[str, int]:
    return {name: len(weight) for name, weight in saved.items()}


def test_a_local_folder_loads_in_float32_on_the_cpu_with_its_saved_weights(folder):
    loaded = load_model(str(folder), "cpu")
    saved = load_file(folder / "model.safetensors")
    assert loaded.info.dtype == "float32"
    assert loaded.info.name == str(folder)
    for name, weight in saved.items():
        assert torch.equal(_weight(loaded, name, _rows(saved)), weight.float())


def test_a_folder_loads_by_its_name_under_home_with_the_same_hash_and_in_a_given_type(folder):
    first = load_model(str(folder), "cpu").info
    models_folder().mkdir(parents=True)
    shutil.move(folder, models_folder() / "mine")
    moved = load_model("mine", "cpu", "bfloat16").info
    assert (moved.layers, moved.sha256, moved.dtype) == (3, first.sha256, "bfloat16")


@pytest.mark.parametrize("by_file", [True, False])
def test_a_gguf_loads_by_its_file_or_folder_with_its_dequantised_weights(tmp_path, by_file):
    path = tmp_path / "some" / "tiny.gguf"
    path.parent.mkdir()
    write_tiny_gguf(path)
    loaded = load_model(str(path if by_file else path.parent), "cpu")
    expected = read_gguf_weights(path)
    assert loaded.info.dtype == "float32"
    for name, weight in expected.items():
        assert torch.equal(_weight(loaded, name, _rows(expected)), weight)


# --- quantised weights ------------------------------------------------------------------------


def quantised(folder: Path, arch: str, kind: str, part: str, pack: Callable[..., Any]) -> Tensors:
    """A tiny model whose weights that end in `part` are packed; returns them as numbers again."""
    AutoModelForCausalLM.from_config(tiny_config(arch)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    saved, packed, numbers = load_file(folder / "model.safetensors"), {}, {}
    for name, weight in saved.items():
        own = pack(name, weight) if name.endswith(part) else ({name: weight}, weight)
        packed |= own[0]
        numbers[name] = own[1]
    save_file(packed, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text("utf-8"))
    block = {"weight_block_size": [32, 32], "activation_scheme": "dynamic"}
    config["quantization_config"] = {"quant_method": kind} | (block if kind == "fp8" else {})
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return numbers


def in_fp8(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    blocks = weight.unflatten(1, (-1, 32)).unflatten(0, (-1, 32))  # [rows, 32, columns, 32]
    scale = blocks.abs().amax((1, 3), keepdim=True) / 448
    eighths = (blocks / scale).to(torch.float8_e4m3fn)
    stored = {name: eighths.view(weight.shape), f"{name}_scale_inv": scale[:, 0, :, 0].clone()}
    return stored, (eighths.float() * scale).view(weight.shape)


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def in_mxfp4(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Of [experts, inputs, outputs]: 32 inputs of an output share a power of two."""
    generator = torch.Generator().manual_seed(len(name))
    experts, inputs, outputs = weight.shape
    codes = torch.randint(0, 16, (experts, outputs, inputs // 32, 32), generator=generator)
    scales = torch.randint(122, 128, (experts, outputs, inputs // 32), generator=generator)
    numbers = FP4[codes % 8] * (1 - 2 * (codes // 8)) * 2.0 ** (scales[..., None] - 127)
    stored = {
        f"{name}_blocks": (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8),
        f"{name}_scales": scales.to(torch.uint8),
    }
    return stored, numbers.flatten(2).transpose(1, 2)


@pytest.mark.parametrize(
    ("arch", "kind", "part", "pack"),
    [
        ("llama", "fp8", "_proj.weight", in_fp8),
        ("gpt_oss", "mxfp4", ("gate_up_proj", "down_proj"), in_mxfp4),
    ],
    ids=["fp8", "mxfp4"],
)
def test_quantised_weights_are_read_as_the_numbers_that_they_stand_for(
    tmp_path, arch, kind, part, pack
):
    numbers = quantised(tmp_path / "small", arch, kind, part, pack)
    loaded = load_model(str(tmp_path / "small"), "cpu")
    assert loaded.info.dtype == "float32"
    for name, weight in numbers.items():
        torch.testing.assert_close(_weight(loaded, name, _rows(numbers)), weight)


def test_a_hybrid_model_is_compared_from_its_folder(tmp_path):
    model, text = saved_model(tmp_path / "model", "qwen3_5"), tmp_path / "text.txt"
    text.write_text("The ferry left at nine. " * 9, "utf-8")
    settings = [
        "--variant",
        "adakv+critical",
        "--budget",
        "25%",
        "--max-new-tokens",
        "5",
        "--device",
        "cpu",
    ]
    files = ["--context", str(text), "--json", str(tmp_path / "out.json")]
    assert main(["compare", "--model", model, *files, *settings]) == 0
    result = from_json(json.loads((tmp_path / "out.json").read_text("utf-8")))
    asked = RunRequest(
        context=text.read_text("utf-8"),
        variants=("adakv+critical:budget=25%",),
        max_new_tokens=5,
    )
    again = folded(compare(asked, tiny_model("qwen3_5")))
    for one, other in zip(result.variants, again.variants, strict=True):
        assert (one.token_ids, one.receipt) == (other.token_ids, other.receipt)
        assert "2 of 4 layers have linear attention" in one.receipt.warnings[-1]
        assert "KiB" in one.receipt.warnings[-1]


def test_an_adapter_is_named_as_one(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}", "utf-8")
    with pytest.raises(ModelError, match=r"is an adapter \(LoRA\), not a model: merge it"):
        load_model(str(tmp_path))


def test_a_tokenizer_loads_alone_without_reading_weights(folder, monkeypatch):
    monkeypatch.setattr("ckv_core.models.loading.AutoModelForCausalLM", None)
    assert load_tokenizer(str(folder))("the")["input_ids"] == tiny_tokenizer()("the")["input_ids"]


def _cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def _without_a_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("config.json", "config.json missing"),
        ("model.safetensors", r"the weights \(model.safetensors\) missing"),
        ("tokenizer.json", r"the tokenizer \(tokenizer.json\) missing"),
        (_cut_short, r"model\.safetensors .* damaged or cut short"),
        # It is not filled with random numbers.
        (_without_a_tensor, r"model\.layers\.1\.mlp\.up_proj\.weight"),
        (_pickled, "only pickled weights"),
    ],
)
def test_what_is_not_whole_is_named(folder, damage, words):
    if isinstance(damage, str):
        (folder / damage).unlink()
    else:
        damage(folder)
    with pytest.raises(ModelError, match=words):
        load_model(str(folder), "cpu")


def test_a_missing_shard_is_named(folder):
    plain_model("qwen3").save_pretrained(folder, max_shard_size="100KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert load_model(str(folder), "cpu").info.layers == 3
    shards[1].unlink()
    with pytest.raises(ModelError, match=f"{shards[1].name} missing"):
        load_model(str(folder), "cpu")


def test_code_that_a_checkpoint_brings_is_never_run(folder, tmp_path):
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (folder / "config.json").write_text(
        '{"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig"}}'
    )
    with pytest.raises(ModelError, match="code from its repository"):
        load_model(str(folder), "cpu")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name",
    ["no-such-model", "", "../nowhere", "~nobody-here/x", "x" * 5000, "a\0b", "<img onerror>"],
)
def test_an_unknown_name_is_told_what_can_be_given(name):
    with pytest.raises(ModelError, match="Give SmolLM2-135M-Instruct, a Hugging Face id") as caught:
        load_tokenizer(name)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LocalEntryNotFoundError("offline"), "cannot be reached and 'org/model' is not in"),
        (RepositoryNotFoundError, "no model 'org/model'"),
        (GatedRepoError, "gated.*HF_TOKEN"),
        (OSError("disk full\nmore"), r"could not be downloaded \(disk full\)"),
    ],
)
def test_what_the_hub_refuses_becomes_one_sentence(error, words, monkeypatch):
    raised = error.__new__(error, "no") if isinstance(error, type) else error
    monkeypatch.setattr(default_model, "snapshot_download", Mock(side_effect=raised))
    with pytest.raises(ModelError, match=words) as caught:
        load_model("org/model", "cpu")
    assert "\n" not in str(caught.value)


def test_a_hub_model_is_checked_before_its_weights_are_fetched(folder, monkeypatch):
    download = Mock(return_value=str(folder))
    monkeypatch.setattr(default_model, "snapshot_download", download)
    assert load_model("org/model", "cpu").info.name == "org/model"
    asked = [call.kwargs["allow_patterns"] for call in download.mock_calls]
    fetched = [any("safetensors" in pattern for pattern in patterns) for patterns in asked]
    assert fetched == [False, True]
    assert not any(pattern.endswith((".bin", ".pt", ".py", "*")) for pattern in asked[1])
    download.reset_mock()
    tiny_config("qwen3", quantization_config={"quant_method": "gptq"}).save_pretrained(folder)
    with pytest.raises(ModelError, match="quantised"):
        load_model("org/model", "cpu")
    (only,) = download.mock_calls
    assert not any("safetensors" in pattern for pattern in only.kwargs["allow_patterns"])


@pytest.mark.parametrize("setting", [{"device": "tpu"}, {"dtype": "int8"}])
def test_unknown_devices_and_types_are_config_errors(setting):
    with pytest.raises(ConfigError, match="must be one of"):
        load_model("anything", **setting)


def test_cuda_without_a_cuda_device_is_a_config_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="No CUDA device"):
        load_model("anything", "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("own", ["", "max_split_size_mb:64"])
def test_on_cuda_the_allocator_grows_its_segments_unless_its_user_has_settings(monkeypatch, own):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, own)
        if not own:
            del os.environ[name]
    with pytest.raises(ModelError):
        load_model("no such model", "cuda")
    assert os.environ["PYTORCH_ALLOC_CONF"] == (own or "expandable_segments:True")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_type_is_one_that_the_card_has(folder):
    info = load_model(str(folder), "auto").info
    newer = torch.cuda.get_device_capability() >= (8, 0)
    assert (info.device, info.dtype) == ("cuda", "bfloat16" if newer else "float16")


# --- how far a download is, and what stops it -----------------------------------------------


def fetch(report: Report, monkeypatch: pytest.MonkeyPatch, parts: int = 4) -> None:
    """A download as the Hub's client does it: bars of bytes whose total grows, and one of files."""

    def download(_id: str, *, tqdm_class: Any, **_: object) -> str:
        received = tqdm_class(desc="bytes", total=0, initial=0, unit="B", unit_scale=True)
        written = tqdm_class(desc="bytes", total=0, initial=0, unit="B", unit_scale=True)
        with tqdm_class(desc="files", total=1) as files:
            for bar in (received, written):
                bar.total = (bar.total or 0) + 1024 * parts
                bar.refresh()
            for _part in range(parts):
                received.update(512)
                written.update(1024)
            files.update(1)
        received.close()
        written.close()
        raise OSError("nothing was there")

    monkeypatch.setattr(default_model, "snapshot_download", download)
    monkeypatch.setattr(steps, "TELL_EVERY_S", 0.0)
    find_checkpoint("org/model", report, with_weights=True)


def test_bytes_are_told_with_the_share_and_a_limit(monkeypatch, capfd):
    told: list[Step] = []
    with pytest.raises(ModelError, match="nothing was there"):
        fetch(told.append, monkeypatch)
    bytes_told = [step for step in told if step.sentence.startswith("Downloading")]
    assert [step.fraction for step in bytes_told][-1] == 1.0
    assert bytes_told[-1].sentence == "Downloading org/model: 4 KiB of 4 KiB."
    assert all(step.limit_s == steps.STALL_S for step in bytes_told)
    fractions = [step.fraction or 0.0 for step in bytes_told]
    assert fractions == sorted(fractions)
    assert capfd.readouterr() == ("", "")


def test_what_the_report_raises_stops_the_download(monkeypatch):
    def stop(step: Step) -> None:
        if step.fraction:
            raise RunCancelledError

    with pytest.raises(RunCancelledError):
        fetch(stop, monkeypatch)


SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _config(name: str, **changes: object) -> PreTrainedConfig:
    return getattr(transformers, f"{name}Config")(**(SMALL | changes))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (lambda: _config("DeepseekV3"), "latent"),
        (lambda: transformers.MambaConfig(num_hidden_layers=2), "State-space layers have none"),
        (
            lambda: tiny_config("qwen3_next", layer_types=["linear_attention"] * 4),
            "keeps one state instead of",
        ),
        (lambda: _config("Bamba", attn_layer_indices=[1]), "State-space layers have none"),
        (lambda: _config("FalconH1"), "layers of type hybrid"),
        (lambda: _config("Lfm2"), "no KV cache per head"),
        (lambda: _config("Gemma3nText"), "share the keys and values"),
        (lambda: _config("BitNet"), "attn_sub_norm"),
        (lambda: _config("StableLm"), "computes attention itself"),
        (lambda: transformers.GPT2Config(n_layer=2), "no list of decoder layers"),
        (lambda: transformers.T5Config(num_layers=2), "encoder-decoder"),
        (transformers.ViTConfig, "not a text-generation model"),
        (lambda: _config("Mistral", sliding_window=32), "nothing to evict"),
        (lambda: tiny_config("phi3", sliding_window=2047), "nothing to evict"),
        (
            lambda: tiny_config("gemma3", layer_types=["sliding_attention"] * 4),
            "nothing to evict",
        ),
        (lambda: tiny_config("gemma3", use_bidirectional_attention=True), "bidirectional"),
        (
            lambda: tiny_config("llama", quantization_config={"quant_method": "gptq"}),
            r"packed by GPTQ, .* \(of its unquantised, FP8 or MXFP4",
        ),
        (lambda: tiny_config("llama", max_position_embeddings=0), "max_position_embeddings"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(config, words):
    with pytest.raises(ModelError, match=words) as caught:
        check_config(config(), "org/some-model")
    assert "'org/some-model'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_window_as_long_as_the_context_limit_hides_nothing_so_the_layer_is_evictable():
    config = tiny_config("phi3", sliding_window=2048, max_position_embeddings=2048)
    model = AutoModelForCausalLM.from_config(config)
    assert read_geometry(model, "phi3").evictable_layers == (0, 1, 2)


def test_only_the_layers_that_slide_are_left_out():
    config = tiny_config("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1)
    geometry = read_geometry(AutoModelForCausalLM.from_config(config), "qwen2")
    assert geometry.sliding_windows == (None, 8, 8)
    assert geometry.evictable_layers == (0,)


class _OtherLinear(nn.Linear):
    """As quantisation libraries do: a Linear whose weight is not the matrix."""


def test_a_projection_that_only_looks_like_a_linear_layer_is_refused():
    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    model.model.layers[1].self_attn.o_proj = _OtherLinear(64, 64, bias=False)
    with pytest.raises(ModelError, match=r"layer 1 .* is a _OtherLinear"):
        read_geometry(model, "llama")


def test_a_layer_with_other_heads_than_the_config_says_is_refused():
    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    model.model.layers[2].self_attn.k_proj = nn.Linear(64, 16, bias=False)
    with pytest.raises(ModelError, match=r"k_proj\.out_features in layer 2 .* is 16, not 32"):
        read_geometry(model, "llama")


@pytest.mark.parametrize("change", [lambda out: out / out.norm(), lambda out: out.roll(1, -1)])
def test_what_lies_between_attention_and_projection_is_found_by_running_the_model(change):
    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    projection = model.model.layers[1].self_attn.o_proj
    projection.register_forward_pre_hook(lambda _module, inputs: (change(inputs[0]),))
    with pytest.raises(ModelError, match="before o_proj"):
        wrap_model(model, tiny_tokenizer(), name="llama", sha256="")


def test_a_model_that_keeps_our_context_from_its_attention_is_refused():
    model = AutoModelForCausalLM.from_config(_config("Nemotron"))
    with pytest.raises(ModelError, match="cannot be handed to the engine"):
        wrap_model(model, tiny_tokenizer(), name="nemotron", sha256="")


def test_all_end_tokens_of_generation_config_and_tokenizer_count():
    model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    model.generation_config.eos_token_id = [7, 9]
    loaded = wrap_model(model, tiny_tokenizer(), name="llama", sha256="")
    assert loaded.eos_token_ids == {7, 9, tiny_tokenizer().eos_token_id}


@pytest.mark.parametrize("arch", [*ARCHITECTURES, *HYBRID])
def test_a_supported_architecture_passes_and_its_geometry_is_the_configs(arch):
    check_config(tiny_config(arch), arch)
    info = tiny_model(arch).info
    assert (info.query_heads, info.kv_heads, info.head_dim) == (4, 2, 16)
    assert info.context_limit == 2048
    assert info.dtype == "float32"
    assert info.device == "cpu"
    expected = (1, 3) if arch in (*SLIDING, *HYBRID) else tuple(range(info.layers))
    assert info.evictable_layers == expected
