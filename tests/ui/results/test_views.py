"""What the components are shown of a run, and what its tables say."""

import csv
import dataclasses
import io
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from ckv_core.results.byte_budget import requested_bytes
from ckv_core.results.events import Progress, RunResult
from ckv_core.results.records import RoundingFloor
from ckv_core.worker.messages import TokensCounted
from tests.factories.app import START, request, running, snapshot
from tests.factories.runs import (
    FULL_BYTES,
    KV_HEADS,
    LAYERS,
    POSITIONS,
    TINY,
    done_result,
    kept_variant,
)
from ui.results import views
from ui.results.cards import generations_value
from ui.tables.summary import summary_csv, summary_value


def cell(result: RunResult, row: int, key: str) -> dict[str, str]:
    return summary_value(result)["rows"][row]["cells"][key]


def test_a_running_run_shows_its_stage_and_what_came_before_it():
    value = views.status_value(running(), START + timedelta(seconds=3))
    states = {stage["name"]: stage["state"] for stage in value["stages"]}
    assert states == {
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


def test_a_failed_run_shows_its_reason_and_no_active_stage():
    run = running(state="failed", reason="It broke.", progress=Progress("decode", 0.1, "x"))
    value = views.status_value(run, START)
    assert value["reason"] == "It broke."
    assert value["stage"] is None
    assert all(stage["state"] != "active" for stage in value["stages"])


def test_a_run_that_was_cut_shows_what_there_is_and_nothing_else():
    result = done_result()
    unborn = {"text": "", "token_ids": (), "token_texts": (), "stopped": None}
    for at in (1, 2):
        result.variants[at] = dataclasses.replace(
            result.variants[at], **unborn, perturbation=None, agreement=None, answer_found=None
        )
    run = snapshot(state="cancelled", result=dataclasses.replace(result, finished=False))
    stages = views.status_value(run, START)["stages"]
    assert {stage["state"] for stage in stages} <= {"done"}
    assert [card["index"] for card in generations_value(run)["cards"]] == [0]
    keys = {column["key"] for column in summary_value(run.result, ended=True)["columns"]}
    assert {"retained_entries", "cache_bytes"} <= keys
    assert not {"agreement", "kl", "final", "improved_heads"} & keys


def test_a_queued_run_says_how_many_are_ahead():
    value = views.status_value(running(state="queued", queue_ahead=2, progress=None), START)
    assert (value["state"], value["queue_ahead"]) == ("queued", 2)


def test_nothing_is_shown_before_the_variants_are_known():
    run = running()
    assert summary_value(run.result) is None
    assert generations_value(run) is None
    assert views.kept_value(run) is None


def test_the_full_cache_is_the_reference_of_the_generations():
    cards = generations_value(snapshot())["cards"]
    assert [card["reference"] for card in cards] == [True, False, False]
    assert [card["answer"] for card in cards] == ["found", "missing", "missing"]
    assert cards[1]["first_difference"] == 1
    assert cards[1]["token_texts"] == ["one", " three"]


def test_a_card_counts_tokens_while_it_runs_and_rests_when_the_run_ends():
    result = done_result()
    result.variants[1] = dataclasses.replace(result.variants[1], stopped=None)
    live = generations_value(running(result=result))["cards"][1]
    over = generations_value(snapshot(state="cancelled", result=result))["cards"][1]
    assert live["status"] == "2 of 64 tokens"
    assert over["status"] == "cancelled"


def test_kept_tokens_wait_until_all_variants_have_selected():
    result = done_result()
    result.variants[2] = dataclasses.replace(result.variants[2], receipt=None, retained=None)
    assert views.kept_value(running(result=result)) is None
    early = views.kept_value(snapshot(state="failed", result=result))
    assert [v["index"] for v in early["variants"]] == [1]


def test_kept_tokens_describe_the_bits_that_the_route_sends():
    value = views.kept_value(snapshot())
    assert (value["layers"], value["kv_heads"], value["positions"]) == (LAYERS, KV_HEADS, POSITIONS)
    assert value["variants"][0] | {"window": 2, "sinks": 1} == value["variants"][0]
    assert [v["index"] for v in value["variants"]] == [1, 2]


def test_the_receipt_shows_asked_and_got():
    result = done_result()
    assert cell(result, 1, "retained_entries") == {
        "text": "24 / 24",
        "title": "Requested 24 entries, counted 24 in the kept sets.",
        "tone": "",
    }
    assert cell(result, 1, "share")["text"] == "40.0%"


def test_a_cache_that_did_not_shrink_is_marked():
    result = done_result()
    receipt = dataclasses.replace(
        result.variants[1].receipt, cache_bytes=FULL_BYTES, retained_entries=60
    )
    result.variants[1] = dataclasses.replace(result.variants[1], receipt=receipt)
    assert cell(result, 1, "retained_entries")["tone"] == "warn"
    assert cell(result, 1, "cache_bytes")["tone"] == "warn"


def test_bytes_are_requested_as_the_store_holds_them():
    result = done_result()
    variant, heads = result.variants[1], LAYERS * KV_HEADS
    entries = variant.receipt.requested_entries // heads
    width = result.model.head_dim
    held = heads * (entries * (2 * width + 4) + width * 4)
    for used, tone in ((held, ""), (held + held // 10, "warn"), (held - held // 10, "warn")):
        receipt = dataclasses.replace(variant.receipt, cache_bytes=used)
        params = {**variant.params, "store": "int8"}
        result.variants[1] = dataclasses.replace(variant, receipt=receipt, params=params)
        assert cell(result, 1, "cache_bytes")["tone"] == tone
        assert requested_bytes(result, result.variants[1]) == held
    assert "held as int8" in cell(result, 1, "cache_bytes")["title"]


def test_a_budget_in_bytes_is_what_was_requested():
    result = done_result()
    for spec, asked in (("snapkv:budget=0.5MiB", 2**19), ("snapkv:budget=9%", None), ("?", None)):
        variant = dataclasses.replace(result.variants[1], spec=spec)
        plain = requested_bytes(result, dataclasses.replace(variant, spec="snapkv"))
        assert requested_bytes(result, variant) == (plain if asked is None else asked)


def test_layers_left_whole_count_among_the_bytes_asked_for():
    result = done_result()
    result.model = dataclasses.replace(TINY, evictable_layers=(0, 2))
    receipt = dataclasses.replace(result.variants[1].receipt, requested_entries=2 * KV_HEADS * 4)
    variant = dataclasses.replace(result.variants[1], receipt=receipt)
    entry = FULL_BYTES // (LAYERS * KV_HEADS * POSITIONS)
    assert requested_bytes(result, variant) == entry * KV_HEADS * (2 * 4 + POSITIONS)


def test_the_share_of_better_heads_names_its_count():
    shown = cell(done_result(), 2, "improved_heads")
    assert shown["text"] == "75% of 12"
    assert cell(done_result(), 1, "improved_heads")["text"] == "\N{EN DASH}"


def test_a_first_difference_counts_from_one():
    assert cell(done_result(), 1, "first_difference")["text"] == "token 2"


def test_the_answer_column_appears_only_with_a_reference_answer():
    result = done_result()
    result.variants = [dataclasses.replace(v, answer_found=None) for v in result.variants]
    keys = [column["key"] for column in summary_value(result)["columns"]]
    assert "answer" not in keys
    assert "answer" in [column["key"] for column in summary_value(done_result())["columns"]]


def test_every_column_says_what_it_is():
    columns = summary_value(done_result())["columns"]
    assert all(column["help"].endswith(".") for column in columns)


def test_a_warning_is_told_once_and_names_its_variants():
    notes = summary_value(done_result())["notes"]
    assert notes == ["SnapKV, SnapKV + CriticalKV: Watch out."]


def test_distances_are_written_out_with_four_digits():
    result = done_result()
    variant = result.variants[1]
    for value, text in ((12_345.6, "12,346"), (61.8, "61.80"), (0.0028, "0.002800")):
        hidden = np.full_like(variant.perturbation.layer_hidden_l1, value)
        far = dataclasses.replace(variant.perturbation, layer_hidden_l1=hidden)
        moved = dataclasses.replace(variant, perturbation=far)
        shown = summary_value(dataclasses.replace(result, variants=(moved,)))
        assert shown["rows"][0]["cells"]["final"]["text"] == text


def test_figures_no_further_than_rounding_say_so_and_the_floor_stands_below():
    result = done_result()
    for kl in (0.24, 0.25):
        hidden = np.array([0.1, 0.2, 4], np.float32)
        result.floor = RoundingFloor(layer_hidden_l1=hidden, kl=kl)
        shown = summary_value(result)
        cells = shown["rows"][1]["cells"]
        assert cells["final"]["text"] == "3.500 ≤ floor"
        assert "floor is 4." in cells["final"]["title"]
        assert cells["kl"]["text"] == ("0.250" if kl < 0.25 else "0.250 ≤ floor")
        assert shown["notes"][0].startswith("Rounding floor of this run (float32): final hidden")
    row = list(csv.DictReader(io.StringIO(summary_csv(result))))[1]
    assert (row["final_hidden_l1_floor"], row["kl_floor_nats"]) == ("4.0", "0.25")


def test_the_csv_is_unrounded_and_leaves_unknown_cells_empty():
    rows = list(csv.DictReader(io.StringIO(summary_csv(done_result()))))
    assert [row["spec"] for row in rows] == ["full", "snapkv:budget=4", "snapkv+critical:budget=4"]
    assert rows[1]["final_hidden_l1"] == "3.5"
    assert rows[0]["kl_nats"] == ""
    assert summary_csv(RunResult()).count("\n") == 1


@pytest.mark.parametrize(
    ("tokens", "tone", "words"),
    [
        (100, "", "100 of 200 tokens"),
        (136, "", "136 of 200 tokens"),
        (137, "error", "1 over the model's limit of 200"),
    ],
)
def test_the_token_count_leaves_room_for_the_new_tokens(tokens, tone, words):
    value = views.count_value(TokensCounted("", tokens, tokens, 200), request())
    assert value["tone"] == tone
    assert words in value["text"]


def test_a_failed_count_shows_its_sentence():
    value = views.count_value(TokensCounted("", 0, 0, 0, "No such model."), request())
    assert value == {"text": "No such model.", "tone": "error"}


def test_details_shorten_a_long_context_and_say_so():
    run = snapshot(request=request(context="x" * 5_000))
    texts = {row["label"]: row["text"] for row in views.details_value(run)["rows"]}
    assert texts["Context"].endswith("(5,000 characters in all)")
    assert texts["Settings for all"] == "budget=4"


def test_a_variant_without_perturbation_has_empty_cells():
    variant = dataclasses.replace(kept_variant(), perturbation=None)
    result = RunResult(model=TINY, variants=[variant])
    assert {cell(result, 0, key)["text"] for key in ("kl", "final", "head")} == {"\N{EN DASH}"}


@pytest.mark.parametrize(("prefill_ms", "said"), [(0.0, True), (12.5, False)])
def test_a_reused_prefill_is_said(prefill_ms, said):
    run = snapshot(result=RunResult(timings_ms={"prefill": prefill_ms}))
    chips = views.status_value(run, datetime.now(tz=UTC))["chips"]
    assert ("prefill reused" in chips) is said


def test_a_start_taken_over_from_another_prompt_is_said_in_tokens():
    prompt = dataclasses.replace(done_result().prompt, compressed_tokens=2_000)
    memory = {"cache": 2_000 * 96, "prefill_reused": 1_024 * 96}
    run = snapshot(result=RunResult(timings_ms={"prefill": 12.5}, memory=memory, prompt=prompt))
    chips = views.status_value(run, datetime.now(tz=UTC))["chips"]
    assert "prefill reused: 1,024 of 2,000 tokens" in chips


def test_the_csv_marks_the_rows_of_both_regimes():
    result = done_result()
    result.variants[2] = dataclasses.replace(result.variants[2], method="keydiff")
    rows = csv.DictReader(io.StringIO(summary_csv(result)))
    assert [row["regime"] for row in rows] == ["", "query-aware", "query-agnostic"]
