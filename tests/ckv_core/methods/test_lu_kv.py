"""LU-KV: its curves and budgets against literal loops, and how a model comes to its table."""

from collections import deque
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.engine import head_tables
from ckv_core.engine import utility_profile as made
from ckv_core.engine.compare import compare, made_table
from ckv_core.engine.head_tables import keep_table, kept_table, table_of, written
from ckv_core.engine.prefill import Needs, prefill
from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS
from ckv_core.methods.parts.views import Table
from ckv_core.records.events import Progress
from ckv_core.records.variants import VariantSpec
from tests.factories.layers import GivenCandidates, random_layer
from tests.factories.models import drained, plain_model, tiny_model
from tests.factories.tiny_runs import BASE, run
from tests.reference import utility_curves as literal
from tests.reference.scores import output_weight

RULE = METHODS.get("lu_kv").budget_rule
TINY = tiny_model("llama")  # 3 layers, 2 KV heads, 4 query heads
(OWN,) = VariantSpec.parse("lu_kv").tables


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 24), st.integers(0, 5), st.data())
def test_entries_go_one_after_the_other_where_the_hull_says_that_least_is_lost(
    layers, heads, entries, always, data
):
    """Sixteenths and lengths of 100 or fewer: sums are exact, and ties are many."""
    worth = [
        [
            [each / 16 for each in data.draw(st.lists(st.integers(0, 8), min_size=entries,
                                                      max_size=entries))]
            for _ in range(heads)
        ]
        for _ in range(layers)
    ]  # fmt: skip
    found = made.gone(torch.tensor(worth, dtype=torch.float64), always)
    expected = torch.tensor(literal.curves(worth, always), dtype=torch.float64)
    torch.testing.assert_close(found, expected)


@given(st.integers(1, 30), st.integers(0, 4), st.integers(0, 2**20), st.data())
def test_budgets_are_what_the_curves_leave_scaled_to_the_total(entries, always, seed, data):
    spare = data.draw(st.integers(0, entries))
    layers = [random_layer(seed + at, 2, 1, entries + always) for at in range(3)]
    scorer, columns = METHODS.get("lu_kv").scorer, slice(always, always + entries)
    candidates = GivenCandidates(scorer, {"table": "given"}, layers, columns, spare)
    numbers = torch.rand(99, 3, 2, generator=torch.Generator().manual_seed(seed)).double()
    candidates.table = (numbers * (seed % 5) / 4).clamp(max=1).tolist()
    found = RULE.head_budgets(candidates, spare, {"table": "given"}).flatten().tolist()
    assert found == literal.budgets(candidates.table, spare, entries, always)
    assert sum(found) == 6 * spare


def test_an_entrys_worth_is_the_largest_weighed_attention_of_what_comes_later():
    """Against plain transformers' attention of the text read whole, by loops."""
    ids, plain = made.pieces(TINY)[0][:100], plain_model("llama")
    assert len(made.pieces(TINY)[0]) == made.PIECE
    start = ids[: -made._LATER]
    read = partial(prefill, TINY, needs=Needs(64), should_stop=lambda: False)
    with torch.inference_mode():
        near, far = (drained(read(token_ids=each)) for each in (start, ids))
        output = plain(torch.tensor([ids]), output_attentions=True, use_cache=True)
    for layer in range(TINY.info.layers):
        values = output.past_key_values.layers[layer].values[0, :, : len(start)].double()
        maps = output_weight(plain, layer).double().chunk(4, dim=1)
        norms = [(values[h // 2] @ each.T).norm(dim=-1).tolist() for h, each in enumerate(maps)]
        rows = output.attentions[layer][0, :, -made._LATER :].tolist()
        expected = torch.tensor(literal.utility(rows, norms, 2), dtype=torch.float64)
        found = made.utility(near, far, layer)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-9)


def test_the_table_is_made_once_for_each_scorer_and_its_settings(monkeypatch, tmp_path):
    monkeypatch.setattr(head_tables, "head_tables_folder", lambda: tmp_path)
    asked = replace(BASE, variants=("lu_kv:budget=60",))

    def making() -> list[Progress]:
        events = [event for event in compare(asked, TINY) if isinstance(event, Progress)]
        return [event for event in events if "budget curves" in event.detail]

    shares = [event.fraction for event in making()]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert not making()
    curves = table_of(TINY.info, OWN)
    assert curves.shape == (99, 3, 2)
    assert (curves.diff(dim=0) >= -1e-6).all(), "more goes at each level"
    levels = [at / 100 for at in range(1, 100)]
    assert curves.mean((1, 2)).tolist() == pytest.approx(levels, abs=2e-3)
    others = ("lu_kv:future=64", "snapkv:rule=utility_curves", "keydiff:rule=utility_curves")
    names = {table.name for each in others for table in VariantSpec.parse(each).tables}
    assert len(names | {OWN.name}) == 4
    assert VariantSpec.parse("lu_kv:budget=20%").tables == {OWN}


def test_any_scorer_has_a_table_also_one_of_further_passes_or_of_sliding_layers():
    for arch, spec in (("llama", "kvzip:repeat=256,"), ("gemma3", "knorm:")):
        loaded, variant = tiny_model(arch), VariantSpec.parse(f"{spec}rule=utility_curves")
        (table,) = variant.tables
        deque(made_table(loaded, table, variant), maxlen=0)
        numbers = table_of(loaded.info, table)
        sliding = set(range(loaded.info.layers)) - set(loaded.info.evictable_layers)
        assert not numbers[:, list(sliding)].any()
        assert numbers[:, list(loaded.info.evictable_layers)].mean() == pytest.approx(0.5, abs=2e-3)
    variant = VariantSpec.parse("snapkv:window=1000,budget=1020,rule=utility_curves")
    with pytest.raises(ConfigError, match="always keeps all 960 tokens"):
        deque(made_table(TINY, OWN, variant), maxlen=0)


def test_a_file_of_the_authors_form_is_taken_and_one_of_another_kind_is_refused(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(head_tables, "head_tables_folder", lambda: tmp_path)
    level = torch.arange(1, 100).double()[:, None, None] / 100
    numbers = level.expand(99, 3, 2)
    keep_table(TINY.info, "given", written(numbers))
    torch.testing.assert_close(table_of(TINY.info, Table("given", "curves")), numbers)
    equal = run(replace(BASE, variants=("lu_kv:budget=60,table=given",)))
    assert equal.variants[0].retained.mask().sum(-1).tolist() == [[60, 60]] * 3
    with pytest.raises(ConfigError, match="has 297 lines; 'tiny-llama' has 3 layers, with 1 each"):
        kept_table(TINY.info, Table("given"))
