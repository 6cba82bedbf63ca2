"""The Methods page names every method and parameter, and says what the parts declare."""

from ckv_core.methods import METHODS, PARAMETERS
from ui.methods.cards import methods_list, parameters_table


def test_the_methods_page_names_every_method_and_parameter():
    page, table = methods_list(), parameters_table()
    assert all(f'id="method-{each.name}"' in page for each in METHODS)
    assert all(f'href="methods#method-{each.name}"' in page for each in METHODS)
    assert all(f"<code>{name}</code>" in table for name in PARAMETERS)


def test_a_card_says_what_is_protected_needed_and_fit_as_the_parts_declare_it():
    cards = {card.partition('"')[0]: card for card in methods_list().split('id="method-')[1:]}
    assert "<dd>window 32</dd>" in cards["snapkv"]
    assert "<code>window=32</code> (kvpress 64)" in cards["snapkv"]
    assert "attention of the last 32 queries" in cards["snapkv"]
    assert "<code>snapkv+critical</code>" in cards["snapkv"]
    assert "no: it has no attention score" in cards["keydiff"]
    assert "<dd>the cache alone</dd>" in cards["keydiff"]
    assert "accumulated attention, gathered while the prompt is read" in cards["h2o"]
    assert "work after every step" in cards["h2o"]
    assert not any("(&#39;" in card for card in cards.values())
