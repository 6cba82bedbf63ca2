"""The sliders of a result: which a run has, its own values, and what follows them."""

import asyncio
import json
from dataclasses import replace

from tests.factories.app import request, running, snapshot, sweep_snapshot
from tests.factories.events import events_of
from tests.factories.runs import analysed, done_result
from ui.results.next_steps import live_value
from ui.run.routes import preview_values


def test_both_sliders_have_the_runs_own_values_and_the_least_budget_that_fits():
    asked = request(variants=("full", "snapkv:window=2", "snapkv+critical:window=2"))
    value = live_value(snapshot(request=asked))
    assert value["budget"] == {"at": 40.0, "least": 20, "most": 50}
    assert value["alpha"] == {"at": 0.25, "least": 0, "most": 1}
    assert value["tokens"] == 10


def test_a_run_above_half_the_prompt_has_a_longer_slider():
    asked = request(variants=("full", "streaming_llm:sinks=1"), budgets=("8",))
    result = done_result()
    receipt = replace(result.variants[1].receipt, budget_tokens=8)
    result.variants[1] = replace(result.variants[1], receipt=receipt)
    value = live_value(snapshot(request=asked, result=result))
    assert value["budget"]["most"] == value["budget"]["at"] == 80
    assert value["alpha"] is None


def test_what_a_variant_sets_itself_has_no_slider():
    budgets = request(
        variants=("full", "snapkv:window=2,budget=4", "streaming_llm:sinks=1,budget=5")
    )
    assert live_value(snapshot(request=budgets)) is None
    alphas = request(
        variants=("full", "snapkv+critical:window=2,alpha=0.5", "streaming_llm:sinks=1")
    )
    assert live_value(snapshot(request=alphas))["alpha"] is None


def test_a_run_that_is_not_done_not_one_point_a_method_or_without_the_full_cache_has_none():
    apart = snapshot(request=request(variants=("snapkv:window=2",), reference=False))
    for run in (running(), snapshot(state="failed"), sweep_snapshot(), apart):
        assert live_value(run) is None


def test_an_imported_run_of_unknown_methods_has_none():
    assert live_value(snapshot(request=request(variants=("full", "of_the_future")))) is None


def test_the_charts_in_sight_follow_with_their_choices_and_no_others():
    stored = snapshot(result=analysed())
    seen = ["final?quantity=normed_l1", "layers?quantity=hidden_l1&against=value"]

    async def shown():
        async def events():
            for event in events_of(stored.result):
                yield event

        values = preview_values(stored, stored.request, events(), [*seen, "bounds?", "none"])
        return [each["shown"] async for each in values if "charts" in each.get("shown", {})]

    (first,) = asyncio.run(shown())
    figures = first["charts"]["figures"]
    assert list(figures) == seen
    title = json.loads(figures[seen[0]])["layout"]["title"]["text"]
    assert title.endswith("after the final norm")
    assert {chart["csv"] for chart in first["charts"]["charts"]} == {""}
    assert first["diagnostics"]["charts"] == []
