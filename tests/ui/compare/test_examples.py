"""Built-in examples: complete, readable, and refused with a clear sentence when broken."""

import json
import re

import pytest

from ckv_core.errors import ConfigError
from ui.compare.examples import Example, load_examples

GOOD = {
    "id": "a",
    "title": "A",
    "file": "a.txt",
    "question": "What?",
    "answer": "",
    "scenario": "regular",
    "budget": "40%",
    "max_new_tokens": 32,
    "variants": ["full", "snapkv"],
}


def write_folder(folder, *entries, text=b"Some text."):
    (folder / "index.json").write_text(json.dumps(list(entries)), encoding="utf-8")
    (folder / "a.txt").write_bytes(text)
    return folder


def test_built_in_examples_are_valid_requests():
    examples = load_examples()
    assert len(examples) >= 5
    for example in examples:
        assert len(example.request().validate()) > 1
        assert "\n" not in example.title


def test_built_in_examples_are_long_enough_to_evict_from():
    assert all(len(re.findall(r"\w+", example.context)) > 600 for example in load_examples())


def test_reference_answers_occur_in_their_context():
    for example in load_examples():
        assert example.answer in example.context


def test_every_text_beside_the_index_is_used():
    from ui.compare.examples import EXAMPLES_FOLDER

    index = json.loads((EXAMPLES_FOLDER / "index.json").read_text(encoding="utf-8"))
    assert {path.name for path in EXAMPLES_FOLDER.glob("*.txt")} == {e["file"] for e in index}


def test_a_folder_of_ones_own_is_read(tmp_path):
    assert load_examples(write_folder(tmp_path, GOOD)) == [
        Example(
            id="a",
            title="A",
            context="Some text.",
            question="What?",
            answer="",
            scenario="regular",
            budget="40%",
            variants=("full", "snapkv"),
            max_new_tokens=32,
        )
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scenario": "both"}, "scenario 'both'"),
        ({"title": " "}, "empty title"),
        ({"file": "none.txt"}, "cannot be read"),
        ({"file": "../a.txt"}, "beside index.json"),
        ({"answer": 7}, "must be text"),
        ({"extra": "x"}, "needs exactly"),
        ({"budget": "many"}, "'many' is not a number"),
        ({"variants": "snapkv"}, "must be text"),
        ({"variants": ["snap"]}, "Unknown method"),
        ({"max_new_tokens": "9"}, "whole number"),
    ],
)
def test_a_broken_entry_is_refused_in_one_sentence(tmp_path, changes, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_examples(write_folder(tmp_path, GOOD | changes))


def test_an_id_may_occur_once(tmp_path):
    with pytest.raises(ConfigError, match="unique"):
        load_examples(write_folder(tmp_path, GOOD, GOOD))


def test_a_text_that_is_not_utf8_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_examples(write_folder(tmp_path, GOOD, text=b"\xff\xfe"))


@pytest.mark.parametrize("index", ["{", "{}"])
def test_a_broken_index_is_refused(tmp_path, index):
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(ConfigError, match=r"index\.json"):
        load_examples(tmp_path)
