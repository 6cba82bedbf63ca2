"""Laws of prefill reuse: same result, no second pass, bounded in bytes."""

from types import SimpleNamespace

import pytest

from ckv_core.compare.compare import compare
from ckv_core.compare.generate import generate
from ckv_core.engine import candidates, layer_view, memo
from ckv_core.engine.prefill import Needs
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import RunResult
from tests.factories.events import folded, without_times
from tests.factories.models import tiny_model

pytestmark = pytest.mark.slow

TEXT = "The ferry left at nine. Nobody waved, for nobody had been told. " * 4
VARIANTS = ("full", "snapkv+critical:budget=48", "adakv:budget=60,window=16")


def _run(loaded: LoadedModel, prefills: PrefillCache | None, **changes: object) -> RunResult:
    settings: dict[str, object] = {"context": TEXT, "variants": VARIANTS, "max_new_tokens": 6}
    return folded(compare(CompareRequest(**(settings | changes)), loaded, prefills=prefills))


@pytest.mark.parametrize("scenario", ["regular", "context-only"])
def test_a_reused_prefill_gives_the_same_run(scenario):
    loaded, prefills = tiny_model("llama"), PrefillCache(2**30)
    _run(loaded, prefills, scenario=scenario, variants=("full", "snapkv:budget=40"))
    again = _run(loaded, prefills, scenario=scenario)
    assert again.timings_ms["prefill"] == 0.0
    assert without_times(again) == without_times(_run(loaded, None, scenario=scenario))


def test_a_wider_window_than_was_kept_is_processed_again():
    loaded, prefills = tiny_model("llama"), PrefillCache(2**30)
    _run(loaded, prefills)
    wide = _run(loaded, prefills, variants=("snapkv:budget=180,window=160",))
    assert wide.timings_ms["prefill"] > 0


def test_the_least_recently_used_goes_first_and_the_bound_holds():
    loaded, first = tiny_model("llama"), PrefillCache(2**30)
    _run(loaded, first)
    one = first.nbytes
    prefills = PrefillCache(int(one * 2.5))
    for context in (TEXT, TEXT[:-1] + "!", TEXT, TEXT[:-1] + "?"):
        _run(loaded, prefills, context=context)
        assert prefills.nbytes <= one * 2.5
    assert _run(loaded, prefills).timings_ms["prefill"] == 0.0
    assert _run(loaded, prefills, context=TEXT[:-1] + "!").timings_ms["prefill"] > 0


def test_a_prefill_over_the_bound_drives_no_other_out():
    prefills = PrefillCache(100)
    for name, size in enumerate((30, 30, 120, 30)):
        prefills.put((name,), SimpleNamespace(nbytes=size, serves=lambda _: True))
    kept = [prefills.get((name,), Needs()) is not None for name in range(4)]
    assert kept == [True, True, False, True]


def test_scores_added_after_a_prefill_was_kept_count_too():
    loaded, prefills = tiny_model("gemma3"), PrefillCache(2**30)
    _run(loaded, prefills, variants=("streaming_llm:budget=48",))
    bare = prefills.nbytes
    (kept,) = prefills._prefills.values()
    _run(loaded, prefills, variants=("snapkv+critical_auto:budget=48",))
    # Window attention without and with its own columns, and norms: a place for every layer.
    heads, tokens = loaded.info.query_heads, kept.prompt_len
    columns = (tokens - 32) + tokens + tokens
    scores = loaded.info.layers * heads * columns * 4
    # Two orders of the entries that may be evicted, in the layers without a sliding window.
    sorted_entries = (
        2 * len(loaded.info.evictable_layers) * loaded.info.kv_heads * (tokens - 32) * 4
    )
    assert prefills.nbytes - bare == scores + sorted_entries
    tight = PrefillCache(bare + 100)
    _run(loaded, tight, variants=("streaming_llm:budget=48",))
    assert tight.nbytes == bare
    _run(loaded, tight, variants=("snapkv+critical_auto:budget=48",))
    assert tight.nbytes == 0, "the run's own scores put it over the bound"


def test_attention_that_each_heads_alpha_asks_for_is_computed_once(monkeypatch):
    loaded, prefills, calls = tiny_model("llama"), PrefillCache(2**30), []
    real = layer_view.full_window_attention
    monkeypatch.setattr(
        layer_view, "full_window_attention", lambda *given: calls.append(1) or real(*given)
    )
    for budget in (48, 60):
        _run(loaded, prefills, variants=(f"snapkv+critical_auto:budget={budget}",))
    assert len(calls) == loaded.info.layers


def test_a_changed_budget_alpha_or_rule_sorts_nothing_again(monkeypatch):
    loaded, prefills, calls = tiny_model("llama"), PrefillCache(2**30), []
    real = candidates.order
    monkeypatch.setattr(candidates, "order", lambda score: calls.append(1) or real(score))
    _run(loaded, prefills, variants=("snapkv+critical:budget=48", "adakv:budget=48"))
    assert len(calls) == 3 * loaded.info.layers, "by both scores, and of all heads together"
    changed = ("pyramidkv+critical:budget=60,alpha=0.7", "adakv+critical:budget=50,safeguard=0.5")
    again = _run(loaded, prefills, variants=changed)
    assert len(calls) == 3 * loaded.info.layers
    assert without_times(again) == without_times(_run(loaded, None, variants=changed))


def test_orders_of_many_poolings_are_bounded():
    loaded, prefills = tiny_model("llama"), PrefillCache(2**30)
    many = tuple(f"snapkv:budget=48,kernel={kernel}" for kernel in range(1, 21, 2))
    assert len(many) > memo.KEPT_ORDERS
    result = _run(loaded, prefills, variants=many)
    (kept,) = prefills._prefills.values()
    assert len(kept.memo._orders) == memo.KEPT_ORDERS
    alone = [_run(loaded, None, variants=(spec,)).variants[0].retained for spec in many]
    assert [variant.retained for variant in result.variants] == alone


@pytest.mark.parametrize("analysis", [(), ("bounds",)])
def test_scores_are_let_go_after_selection_where_nobody_asks_for_them_again(monkeypatch, analysis):
    held, sizes = [], []

    def keep(run, prefilled, *rest):
        held.append(prefilled)
        return generate(run, prefilled, *rest)

    monkeypatch.setattr("ckv_core.compare.compare.generate", keep)
    asked = {"variants": ("snapkv+critical:budget=48",), "analysis": analysis}
    for prefills in (None, PrefillCache(2**30)):
        _run(tiny_model("llama"), prefills, **asked)
        sizes.append(held.pop().memo.nbytes > 0)
    assert sizes == [bool(analysis), True]
