"""HeadKV: budgets against the literal formula, the probe against loops, files that are refused."""

from collections import deque
from dataclasses import replace
from fractions import Fraction
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.cli import main
from ckv_core.comparison.compare import compare
from ckv_core.engine import head_tables
from ckv_core.engine import needle_probe as needle
from ckv_core.engine.candidates import PromptLayer
from ckv_core.engine.head_tables import keep_table, kept_table, parse_table, table_of
from ckv_core.engine.prefill import Needs, prefill
from ckv_core.errors import ConfigError, RunCancelledError
from ckv_core.methods.headkv import shared_budgets
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import Progress
from tests.factories.models import drained, plain_model, tiny_model
from tests.reference.budgets import largest_remainder

LLAMA = tiny_model("llama").info  # 3 layers, 2 KV heads, 4 query heads
GOOD = "0.1\t0.9\n1\t-1e-4\n0\t3\n"


@given(
    st.lists(st.lists(st.integers(0, 8), min_size=2, max_size=2), min_size=1, max_size=4),
    st.integers(0, 30),
    st.fractions(1, 10, max_denominator=8),
    st.booleans(),
)
def test_budgets_are_the_formulas(table, spare, beta, text):
    """B = (b - p) + p * heads * importance / sum, with p = b / beta, or the other part of b."""
    parts = [Fraction(each, 8) for row in table for each in row]
    parts = parts if any(parts) else [Fraction(1)] * len(parts)
    pool = spare - spare / beta if text else spare / beta
    wished = [spare - pool + pool * len(parts) * each / sum(parts) for each in parts]
    expected = largest_remainder(wished, spare * len(parts), 10_000)
    rows = [[each / 8 for each in row] for row in table]
    pooled = 1 - 1 / beta if text else 1 / beta
    assert shared_budgets(rows, spare, 10_000, pooled).tolist() == expected


def test_budgets_stay_exact_where_a_head_cannot_hold_its_share():
    found = shared_budgets([[1.0, 0.0], [0.0, 0.0]], 10, 15, Fraction(1, 1)).tolist()
    assert sum(found) == 40
    assert max(found) == 15


def test_the_probe_counts_the_strongest_entries_that_lie_in_the_needle():
    """One reading against plain transformers' attention, by loops."""
    loaded, plain = tiny_model("llama"), plain_model("llama")
    sentence, question = needle._NEEDLES[0]
    ids, place = needle._prompt(loaded, sentence, question, 0.5)
    assert len(ids) <= needle._TOKENS
    assert loaded.tokenizer.decode(ids[place]).strip() == sentence
    spoken = loaded.tokenizer(sentence, add_special_tokens=False)["input_ids"]
    answer, text = len(spoken), ids + spoken[:-1]
    with torch.inference_mode():
        result = drained(prefill(loaded, text, Needs(answer), lambda: False))
        attention = plain(torch.tensor([text]), output_attentions=True).attentions
    length = place.stop - place.start
    for layer in range(loaded.info.layers):
        heads = []
        for head in range(4):
            total = 0.0
            for row in attention[layer][0, head, -answer:].tolist():
                strongest = sorted(range(len(row)), key=lambda i, row=row: -row[i])[:length]
                inside = [i for i in strongest if place.start <= i < place.stop]
                total += sum(row[i] for i in inside) / length
            heads.append(total)
        found = needle._looked_at(PromptLayer(result, layer), place, answer)
        expected = [(heads[0] + heads[1]) / 2, (heads[2] + heads[3]) / 2]
        assert found.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-5)


def asked(**changes: Any) -> CompareRequest:
    fields = {"context": "Rain fell. " * 60, "variants": ("headkv:budget=40",), "max_new_tokens": 1}
    return CompareRequest(**{**fields, **changes})


def test_the_probe_runs_once_a_model_with_progress_and_its_table_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(head_tables, "head_tables_folder", lambda: tmp_path)
    loaded = tiny_model("gemma3")

    def probing() -> list[Progress]:
        events = [event for event in compare(asked(), loaded) if isinstance(event, Progress)]
        return [event for event in events if "needle probe" in event.detail]

    told = probing()
    shares = [event.fraction for event in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert len(shares) >= 6
    first = table_of(loaded.info, "needle")
    sliding = set(range(loaded.info.layers)) - set(loaded.info.evictable_layers)
    assert max(map(max, first)) == 1
    assert not any(any(first[layer]) for layer in sliding)
    assert not probing()
    assert table_of(loaded.info, "needle") == first
    assert kept_table(replace(loaded.info, sha256="1" * 64), "needle") is None


def test_a_cancelled_probe_keeps_no_table(monkeypatch, tmp_path):
    monkeypatch.setattr(head_tables, "head_tables_folder", lambda: tmp_path)
    loaded, told = tiny_model("llama"), Mock(side_effect=[False] * 10 + [True])
    with pytest.raises(RunCancelledError):
        deque(needle.probe(loaded, told), maxlen=0)
    assert kept_table(loaded.info, "needle") is None
    deque(needle.probe(loaded), maxlen=0)
    assert table_of(loaded.info, "needle")


def test_a_missing_table_is_refused_before_anything_is_read():
    events = compare(asked(variants=("headkv:budget=40,table=duo",)), tiny_model("llama"))
    with pytest.raises(ConfigError, match="has no head table 'duo'; bring one"):
        next(events)


def test_a_file_is_clipped_and_may_have_a_column_per_query_head(monkeypatch, tmp_path):
    monkeypatch.setattr(head_tables, "head_tables_folder", lambda: tmp_path)
    assert keep_table(LLAMA, "duo", GOOD) == ((0.1, 0.9), (1.0, 0.0), (0.0, 1.0))
    assert kept_table(LLAMA, "duo") == parse_table(GOOD, LLAMA)
    by_query = parse_table("0\t1\t0.5\t0.5\n" * 3, LLAMA)
    assert by_query == ((0.5, 0.5),) * 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 lines"),
        ("1\t1\n", "has 1 lines; 'tiny-llama' has 3 layers"),
        ("1\t1\n1\t1\n1\t1\t1\n", "Line 3 of the head table has 3 numbers"),
        ("1\t1\nnan\t1\n1\t1\n", "Line 2 of the head table: 'nan' is not a number"),
        ("1\t1\n1_0\t1\n1\t1\n", "is not a number"),
        ("0\t-1\n0\t0\n0\t0\n", "no head would matter"),
        ("1\t1\n" * 2**18 + "1", "at most 1 MiB"),
    ],
)
def test_what_is_no_table_is_refused_with_a_sentence(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_table(text, LLAMA)


@pytest.mark.parametrize("name", ["", "../up", "A", "a/b", "x" * 41, ".hidden", "ü"])
def test_a_name_is_a_plain_word(name):
    with pytest.raises(ConfigError, match="must be a word"):
        head_tables.table_name(name)


def test_the_command_asks_for_a_name_beside_a_file(capsys):
    assert main(["heads", "--file", "x.tsv"]) == 2
    assert main(["heads", "--name", "duo"]) == 2
    assert "Give --file and another --name" in capsys.readouterr().err
