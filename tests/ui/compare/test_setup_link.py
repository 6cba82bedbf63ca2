"""Links of setups that were not run: they come back whole, and anything else is refused."""

import base64
import zlib
from types import SimpleNamespace

import pytest

from ckv_core.errors import ConfigError
from tests.factories.app import FakeServices
from tests.ui.compare.test_compare import built, compare_page, open_request
from ui.compare.examples import load_examples
from ui.compare.form_values import CONTROL_NAMES, FormValues
from ui.compare.setup_link import MOST_CHARS, WRONG, _packed, form_of, setup_of

EXAMPLES = [FormValues.from_request(example) for example in load_examples().values()]


@pytest.mark.parametrize("form", [FormValues(), *EXAMPLES, FormValues(context="\u96ea 🙂" * 99)])
def test_a_setup_comes_back_whole(form):
    setup, has_text = setup_of(form)
    assert has_text
    assert len(setup) <= MOST_CHARS
    assert form_of(setup).controls() == form.controls()


def test_a_text_that_is_too_long_is_left_out_and_said():
    long = "".join(map(str, range(9_000)))
    form = FormValues(context=long, question="Which?", budget="5%")
    page = compare_page(FakeServices())
    value, notice = page.link_setup(*form.controls())
    assert "not in it" in notice["text"]
    back = form_of(value["setup"])
    assert (back.context, back.question, back.budget) == ("", "Which?", "5%")
    with pytest.raises(ConfigError, match="too long for a link"):
        setup_of(FormValues(protect=long))


def packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    "setup",
    [
        "AAAA",
        "\u00e9",
        setup_of(EXAMPLES[0])[0][:-9],
        packed(b"[" * 3_000_000),
        packed(b'{"context": "' + b"x" * 3_000_000 + b'"}'),
        packed(b"[]"),
        packed(b'{"context": "\xff"}'),
        _packed({"context": 5}),
        _packed({"variants": [[["x"]]], "no such control": 1}),
        _packed({"max_new_tokens": 10**9}),
        _packed({"scenario": "<b>"}),
        _packed({"dtype": "int3"}),
    ],
)
def test_what_is_no_setup_is_refused_with_one_sentence(setup):
    opened = compare_page(FakeServices()).open(open_request(setup=setup))
    assert opened[len(CONTROL_NAMES)] == {"text": WRONG, "tone": "error"}


def test_an_example_that_is_not_there_fills_in_nothing():
    page = built()
    for at in (-1, 0, "0", None):  # it was built without any
        page.fill_example(SimpleNamespace(_data={"at": at}))
