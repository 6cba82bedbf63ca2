"""What the components are shown of a run, and the JSON that they fetch of it."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from starlette.testclient import TestClient

from ckv_core.records.events import Progress, RunResult, TokensCounted
from tests.factories.app import (
    SLUG,
    START,
    FakeServices,
    request,
    running,
    snapshot,
)
from tests.factories.runs import KV_HEADS, LAYERS, POSITIONS, analysed, done_result
from tests.ui.run.test_routes import client as client_of
from ui.results import views
from ui.results.cards import follow_ups_value, generations_value, teacher_forced_value
from ui.tables.points import summary_value


def with_variant(at: int, **changes) -> RunResult:
    """`done_result` with one variant changed."""
    result = done_result()
    result.variants[at] = dataclasses.replace(result.variants[at], **changes)
    return result


def cards_of(run) -> list[dict]:
    return generations_value(run)["cards"]


# --- status ---------------------------------------------------------------------------------


def test_a_running_run_shows_its_stage_and_what_came_before_it():
    value = views.status_value(running(), START + timedelta(seconds=3))
    assert {stage["name"]: stage["state"] for stage in value["stages"]} == {
        "load": "done",
        "prefill": "active",
        "score": "waiting",
        "select": "waiting",
        "decode": "waiting",
    }
    assert (value["fraction"], value["detail"], value["elapsed_s"]) == (0.5, "layer 1 of 3", 3.0)


def test_elapsed_time_stops_when_the_run_ends():
    late = START + timedelta(days=1)
    assert views.status_value(snapshot(), late)["elapsed_s"] == 2.0
    assert views.status_value(running(started_at=None), late)["elapsed_s"] is None


def test_a_failed_run_shows_its_reason_and_a_queued_one_how_many_are_ahead():
    run = running(state="failed", reason="It broke.", progress=Progress("decode", 0.1, "x"))
    value = views.status_value(run, START)
    assert (value["reason"], value["stage"]) == ("It broke.", None)
    assert all(stage["state"] != "active" for stage in value["stages"])
    value = views.status_value(running(state="queued", queue_ahead=2, progress=None), START)
    assert (value["state"], value["queue_ahead"]) == ("queued", 2)


def test_a_run_that_was_cut_shows_what_there_is_and_nothing_else():
    result = done_result()
    unborn = {"text": "", "token_ids": (), "token_texts": (), "stopped": None}
    unborn |= {"perturbation": None, "agreement": None, "answer_found": None}
    result.variants[1:] = [dataclasses.replace(each, **unborn) for each in result.variants[1:]]
    run = snapshot(state="cancelled", result=dataclasses.replace(result, finished=False))
    stages = views.status_value(run, START)["stages"]
    assert {stage["state"] for stage in stages} <= {"done"}
    assert [card["index"] for card in cards_of(run)] == [0]
    keys = {column["key"] for column in summary_value(run.result, ended=True)["columns"]}
    assert {"retained_entries", "cache_bytes"} <= keys
    assert not {"agreement", "kl", "final", "improved_heads"} & keys


def test_nothing_is_shown_before_the_variants_are_known():
    run = running()
    assert summary_value(run.result) is generations_value(run) is views.kept_value(run) is None


PROMPT_2000 = dataclasses.replace(done_result().prompt, compressed_tokens=2_000)


@pytest.mark.parametrize(
    ("changes", "chips"),
    [
        ({"timings_ms": {"prefill": 0.0}}, ["prefill reused"]),
        ({"timings_ms": {"prefill": 12.5}}, []),
        (
            {
                "timings_ms": {"prefill": 12.5},
                "memory": {"cache": 2_000 * 96, "prefill_reused": 1_024 * 96},
                "prompt": PROMPT_2000,
            },
            ["prefill reused: 1,024 of 2,000 tokens"],
        ),
        (
            {"memory": {"total": 300 * 2**20, "measured_peak": 200 * 2**20}},
            ["memory estimate about 300.0 MiB", "peak 200.0 MiB measured"],
        ),
    ],
    ids=["reused", "not reused", "reused in part", "memory"],
)
def test_chips_say_what_was_reused_and_tell_estimate_and_peak_apart(changes, chips):
    value = views.status_value(snapshot(result=RunResult(**changes)), datetime.now(tz=UTC))
    found = [chip for chip in value["chips"] if "reused" in chip or "MiB" in chip]
    assert found == chips


# --- generated texts, strips and kept tokens ------------------------------------------------


def test_the_full_cache_is_the_reference_of_the_generations():
    cards = cards_of(snapshot())
    assert [card["reference"] for card in cards] == [True, False, False]
    assert [card["answer"] for card in cards] == ["answered", "cut", "cut"]
    assert cards[1]["first_difference"] == 1
    assert cards[1]["token_texts"] == ["one", " three"]


def test_a_card_counts_tokens_while_it_runs_and_rests_when_the_run_ends():
    result = with_variant(1, stopped=None)
    assert cards_of(running(result=result))[1]["status"] == "2 of 64 tokens"
    assert cards_of(snapshot(state="cancelled", result=result))[1]["status"] == "cancelled"


def test_a_strip_is_offered_once_the_run_is_over_and_has_its_tokens_without_a_full_variant():
    address = f"/data/{SLUG}/{{}}/forced"
    over, early = (
        [card["forced"] for card in cards_of(snapshot(state=state, result=analysed()))]
        for state in ("done", "running")
    )
    assert over == [None, address.format(1), address.format(2)]
    assert early == [None] * 3
    without_full = analysed()
    without_full.variants = without_full.variants[1:]
    assert teacher_forced_value(without_full, 0)["tokens"] == ["one", " two"]


def test_follow_ups_are_cards_per_question():
    assert follow_ups_value(snapshot()) == {"questions": []}
    (asked,) = follow_ups_value(snapshot(result=analysed()))["questions"]
    assert asked["question"] == "And then?"
    assert [card["chips"] for card in asked["cards"]] == [[], ["50% agreement"], ["50% agreement"]]
    assert asked["cards"][0]["reference"]


def test_kept_tokens_wait_until_all_variants_have_selected():
    result = with_variant(2, receipt=None, retained=None)
    assert views.kept_value(running(result=result)) is None
    early = views.kept_value(snapshot(state="failed", result=result))
    assert [v["index"] for v in early["variants"]] == [1]


def test_kept_tokens_describe_the_bits_that_the_route_sends():
    value = views.kept_value(snapshot())
    assert (value["layers"], value["kv_heads"], value["positions"]) == (LAYERS, KV_HEADS, POSITIONS)
    known = {"window": 2, "sinks": 1}
    assert value["variants"][0] | known == value["variants"][0]
    assert [v["index"] for v in value["variants"]] == [1, 2]


# --- links, settings and the prompt's length ------------------------------------------------


def test_the_files_of_the_diagnostics_are_linked_where_the_run_has_them():
    for run, there in ((snapshot(), False), (snapshot(result=analysed()), True)):
        value = views.links_value(run)
        assert (value["forced"], value["follow_ups"]) == (there, there)


def test_details_shorten_a_long_context_and_say_the_settings():
    result = done_result()
    result.memory = {"total": 300 * 2**20, "measured_peak": 200 * 2**20}
    run = snapshot(request=request(context="x" * 5_000), result=result)
    texts = {row["label"]: row["text"] for row in views.details_value(run)["rows"]}
    assert texts["Context"].endswith("(5,000 characters in all)")
    assert texts["Settings for all"] == "budget=4"
    assert texts["Memory"] == "estimate in all: 300.0 MiB\nmeasured peak: 200.0 MiB"


@pytest.mark.parametrize(
    ("tokens", "tone", "words"),
    [
        (100, "", "100 of 200 tokens"),
        (136, "", "136 of 200 tokens"),
        (137, "error", "1 over the model's limit of 200"),
    ],
)
def test_the_token_count_leaves_room_for_the_new_tokens(tokens, tone, words):
    value = views.count_value(TokensCounted(tokens, tokens, 200), request())
    assert value["tone"] == tone
    assert words in value["text"]


def test_a_failed_count_shows_its_sentence():
    counted = TokensCounted(error="No such model.", field="model")
    value = views.count_value(counted, request())
    assert value == {"text": "No such model.", "tone": "error", "field": "model"}


# --- routes ---------------------------------------------------------------------------------


@pytest.fixture
def client() -> TestClient:
    """Of a run with every diagnostic."""
    return client_of(FakeServices(snapshot(result=analysed())))


def test_figures_and_strips_come_as_json(client):
    figure = client.get(f"/data/{SLUG}/figure/sigma?variant=2").json()
    assert figure["layout"]["title"]["text"].startswith("CriticalKV-SnapKV")
    strip = client.get(f"/data/{SLUG}/1/forced").json()
    assert strip["tokens"] == ["one", " two"]
    assert (strip["top1"], strip["rank"]) == ([1, 0], [1, 7])
    assert strip["steps"][0]["variant"] == [{"text": "<b>", "probability": 0.5}]


@pytest.mark.parametrize(
    "path", ["x/figure/sigma", f"{SLUG}/figure/x", f"{SLUG}/0/forced", f"{SLUG}/9/forced"]
)
def test_what_does_not_exist_is_a_404(client, path):
    assert client.get(f"/data/{path}").status_code == 404


def test_the_chart_library_is_our_own_file(client):
    answer = client.get("/plotly.js")
    assert answer.headers["content-encoding"] == "gzip"
    assert "plotly.js v" in answer.text[:200]
