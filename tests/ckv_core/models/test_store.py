"""Manifests, remembered hashes, and the list of models that are at hand."""

import hashlib
import json
import os
from pathlib import Path

import platformdirs
import pytest

from ckv_core.base.home import home_folder, models_folder
from ckv_core.models import catalog, store
from ckv_core.models.catalog import list_models
from ckv_core.models.store import combine, read_manifest, weights_sha256, write_manifest
from ckv_core.records.run_request import DEFAULT_MODEL


@pytest.fixture
def path(tmp_path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "model.safetensors"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_home_is_ckv_home_or_the_platforms_folder(monkeypatch):
    monkeypatch.setenv("CKV_HOME", "~/somewhere")
    assert home_folder() == Path.home() / "somewhere"
    monkeypatch.setenv("CKV_HOME", " ")
    assert home_folder() == platformdirs.user_data_path("criticalkv-lab", appauthor=False)


def test_the_hash_of_several_files_depends_on_names_and_content_but_not_on_order():
    first = combine({"a": _sha256(b"1"), "b": _sha256(b"2")})
    assert combine({"b": _sha256(b"2"), "a": _sha256(b"1")}) == first
    assert combine({"a": _sha256(b"2"), "b": _sha256(b"1")}) != first
    assert combine({"a": _sha256(b"1"), "c": _sha256(b"2")}) != first


def test_an_unchanged_file_is_hashed_once_and_a_changed_one_again(path, monkeypatch):
    read: list[Path] = []
    original = store.hash_file
    monkeypatch.setattr(store, "hash_file", lambda each: (read.append(each), original(each))[1])
    assert weights_sha256([path]) == weights_sha256([path]) == _sha256(b"weights")
    assert read == [path]
    path.write_bytes(b"changed")
    os.utime(path, ns=(1, 1))  # the clock may be too coarse to show the write
    assert weights_sha256([path]) == _sha256(b"changed")
    assert read == [path, path]


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}'])
def test_damaged_remembered_hashes_are_passed_over(path, home, content):
    home.mkdir()
    (home / "weights-sha256.json").write_text(content)
    assert weights_sha256([path]) == weights_sha256([path]) == _sha256(b"weights")


def test_a_home_that_cannot_be_written_still_gives_the_hash(path, home):
    home.write_text("a file where the folder should be")
    assert weights_sha256([path]) == _sha256(b"weights")


def test_a_manifest_counts_only_with_all_its_files_at_their_sizes(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    written = write_manifest(folder, "test")
    assert read_manifest(folder) == written
    assert written.sha256 == _sha256(b"weights")
    (folder / "config.json").write_text("{ }")
    assert read_manifest(folder) is None
    (folder / "config.json").unlink()
    assert read_manifest(folder) is None


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
