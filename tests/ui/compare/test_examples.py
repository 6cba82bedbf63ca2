"""Built-in examples: complete, and valid requests."""

import json
import re

from ui.compare.examples import EXAMPLES_FOLDER, load_examples


def test_built_in_examples_are_valid_requests():
    examples = load_examples()
    assert len(examples) >= 5
    assert len({example.id for example in examples}) == len(examples)
    for example in examples:
        assert len(example.request().validate()) > 1
        assert example.title.strip()
        assert "\n" not in example.title


def test_built_in_examples_are_long_enough_to_evict_from():
    assert all(len(re.findall(r"\w+", example.context)) > 600 for example in load_examples())


def test_reference_answers_occur_in_their_context():
    for example in load_examples():
        assert example.answer in example.context


def test_every_text_beside_the_index_is_used():
    index = json.loads((EXAMPLES_FOLDER / "index.json").read_text(encoding="utf-8"))
    assert {path.name for path in EXAMPLES_FOLDER.glob("*.txt")} == {e["file"] for e in index}
