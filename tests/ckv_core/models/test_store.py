"""Manifests and remembered hashes."""

import hashlib
import os
from pathlib import Path

import platformdirs
import pytest

from ckv_core.models import store
from ckv_core.models.store import combine, read_manifest, weights_sha256, write_manifest
from ckv_core.runtime.home import home_folder


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
