"""Words that explain themselves: from the glossary into the pages, and plain in a report."""

import pytest

from ui.looks.glossary import with_terms, without_marks, words

ASKED_FOR = {"KV head", "entry", "SPEC", "sigma", "theta", "base", "cascaded", "isolated"}


def test_the_glossary_has_the_words_on_screen_with_a_sentence_each():
    assert set(words()) >= ASKED_FOR
    assert all(text.endswith(".") and "|" not in text for text in words().values())


def test_a_marked_word_is_a_button_and_the_rest_stays():
    html = with_terms("more [[KV head|KV heads]] keep it")
    assert html.startswith('more <button type="button" class="ckv-term" value="KV head"')
    assert html.endswith(">KV heads</button> keep it")
    with pytest.raises(KeyError):
        with_terms("[[KV hat]]")
    # A report has plain words.
    assert without_marks("[[entry|Entries]] of a [[KV head]]") == "Entries of a KV head"
