"""The list of models for the command line and the page."""

import json
from pathlib import Path

import pytest

from ckv_core.models import catalog
from ckv_core.models.catalog import list_models
from ckv_core.models.store import write_manifest
from ckv_core.request.compare_request import DEFAULT_MODEL
from ckv_core.runtime.home import models_folder


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch) -> None:
    """No Hub cache, no CKV_MODEL."""
    monkeypatch.setattr(catalog.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("CKV_MODEL", raising=False)


def _checkpoint(folder: Path, architecture: str, weights: str = "model.safetensors") -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (folder / weights).write_bytes(b"weights")


def test_the_default_model_is_first_and_says_whether_it_is_ready():
    (choice,) = list_models()
    assert (choice.name, choice.source, choice.ready) == (DEFAULT_MODEL, "default", False)
    assert "will be prepared" in choice.note
    folder = models_folder() / DEFAULT_MODEL
    _checkpoint(folder, "LlamaForCausalLM")
    assert not list_models()[0].ready
    write_manifest(folder, "test")
    assert list_models()[0].ready


def test_local_folders_are_listed_but_neither_hidden_nor_incomplete_ones():
    _checkpoint(models_folder() / "mine", "Qwen3ForCausalLM")
    _checkpoint(models_folder() / "quantised", "-", "model.gguf")
    _checkpoint(models_folder() / f".{DEFAULT_MODEL}-123", "LlamaForCausalLM")
    _checkpoint(models_folder() / "pickled", "LlamaForCausalLM", "pytorch_model.bin")
    (models_folder() / "empty").mkdir()
    assert [choice.name for choice in list_models()[1:]] == ["mine", "quantised"]


def test_causal_models_of_the_hub_cache_are_listed(tmp_path):
    hub = tmp_path / "hub"
    _checkpoint(hub / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc", "Qwen3ForCausalLM")
    _checkpoint(hub / "models--org--encoder" / "snapshots" / "abc", "BertModel")
    _checkpoint(hub / "models--org--pickled" / "snapshots" / "abc", "LlamaForCausalLM", "a.bin")
    _checkpoint(hub / "datasets--org--data" / "snapshots" / "abc", "LlamaForCausalLM")
    (choice,) = list_models()[1:]
    assert (choice.name, choice.source, choice.ready) == ("Qwen/Qwen3-0.6B", "hub cache", True)


def test_ckv_model_is_listed_once(monkeypatch):
    monkeypatch.setenv("CKV_MODEL", "org/other")
    assert [choice.name for choice in list_models()] == [DEFAULT_MODEL, "org/other"]
    monkeypatch.setenv("CKV_MODEL", DEFAULT_MODEL)
    assert [choice.name for choice in list_models()] == [DEFAULT_MODEL]


def test_damaged_configs_are_passed_over():
    _checkpoint(models_folder() / "odd", "LlamaForCausalLM")
    for text in ("{", "[]", '{"architectures": null}', "\x00"):
        (models_folder() / "odd" / "config.json").write_text(text)
        assert len(list_models()) == 1
