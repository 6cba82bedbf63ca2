"""The summary of a run: its columns, what a cell says and warns of, and its file."""

from dataclasses import replace

import numpy as np

from ckv_core.records.byte_budget import requested_bytes
from ckv_core.records.events import RunResult
from ckv_core.records.records import RoundingFloor
from tests.factories.runs import (
    FULL_BYTES,
    KV_HEADS,
    LAYERS,
    POSITIONS,
    TINY,
    done_result,
    kept_variant,
)
from tests.factories.tables import rows_of
from ui.tables.points import summary_csv, summary_value


def changed(at: int = 1, *, in_receipt=None, **changes) -> RunResult:
    """`done_result` with one variant changed, or with other figures in its receipt."""
    result = done_result()
    found = result.variants[at]
    receipt = replace(found.receipt, **(in_receipt or {}))
    result.variants[at] = replace(found, receipt=receipt, **changes)
    return result


def cell(result: RunResult, row: int, key: str) -> dict[str, str]:
    """What is shown, empty where nothing is known."""
    found = summary_value(result)["rows"][row]["cells"].get(key, {})
    return {"text": "", "tone": "", "title": ""} | found


def shown(result: RunResult, *, ended: bool = True) -> dict[str, bool]:
    """Columns of the summary by key, and whether each waits until it is asked for."""
    value = summary_value(result, ended=ended)
    return {each["key"]: each["extra"] for each in value["columns"][2:]}


# --- which columns there are ----------------------------------------------------------------


def test_a_column_that_stayed_empty_is_left_out_and_one_with_a_warning_never_waits():
    result = done_result()
    result.variants = [variant for variant in result.variants if not variant.critical]
    assert "improved_heads" not in shown(result)
    assert not shown(result, ended=False)["improved_heads"]
    result = changed(in_receipt={"retained_entries": 1, "cache_bytes": 1})
    assert not shown(result)["retained_entries"]
    assert not shown(result)["cache_bytes"]


# --- what a cell says -----------------------------------------------------------------------


def test_the_receipt_shows_asked_and_got_and_marks_a_cache_that_did_not_shrink():
    got = cell(done_result(), 1, "retained_entries")
    assert got["title"] == "Requested 24 entries, counted 24 in the kept sets."
    assert got["tone"] == ""
    result = changed(in_receipt={"cache_bytes": FULL_BYTES, "retained_entries": 60})
    assert cell(result, 1, "retained_entries")["tone"] == "warn"
    assert cell(result, 1, "cache_bytes")["tone"] == "warn"


def test_bytes_are_requested_as_the_store_holds_them():
    plain = done_result()
    heads, width = LAYERS * KV_HEADS, plain.model.head_dim
    entries = plain.variants[1].receipt.requested_entries // heads
    held = heads * (entries * (2 * width + 4) + width * 4)
    params = {**plain.variants[1].params, "store": "int8"}
    for used, tone in ((held, ""), (held + held // 10, "warn"), (held - held // 10, "warn")):
        result = changed(in_receipt={"cache_bytes": used}, params=params)
        assert cell(result, 1, "cache_bytes")["tone"] == tone
        assert requested_bytes(result, result.variants[1]) == held
    assert "held as int8" in cell(result, 1, "cache_bytes")["title"]


def test_a_budget_in_bytes_is_what_was_requested():
    plain = requested_bytes(changed(spec="snapkv"), changed(spec="snapkv").variants[1])
    for spec, asked in (("snapkv:budget=0.5MiB", 2**19), ("snapkv:budget=9%", plain), ("?", plain)):
        result = changed(spec=spec)
        assert requested_bytes(result, result.variants[1]) == asked


def test_layers_left_whole_count_among_the_bytes_asked_for():
    result = changed(in_receipt={"requested_entries": 2 * KV_HEADS * 4})
    result.model = replace(TINY, evictable_layers=(0, 2))
    entry = FULL_BYTES // (LAYERS * KV_HEADS * POSITIONS)
    whole = entry * KV_HEADS * (2 * 4 + POSITIONS)
    assert requested_bytes(result, result.variants[1]) == whole


def test_a_warning_is_told_once_and_names_its_variants():
    cut, *notes = summary_value(done_result())["note"].splitlines()
    assert cut.startswith("2 of 3 texts were cut at 2 new tokens before an answer")
    assert notes == ["SnapKV, CriticalKV-SnapKV: Watch out."]


def test_figures_no_further_than_rounding_say_so_and_the_floor_stands_below():
    result = done_result()
    for kl in (0.24, 0.25):
        hidden = np.array([0.1, 0.2, 4], np.float32)
        result.floor = RoundingFloor(layer_hidden_l1=hidden, kl=kl)
        final = cell(result, 1, "final")
        assert final["text"] == "3.500 ≤ floor"
        assert "floor is 4." in final["title"]
        assert cell(result, 1, "kl")["text"] == ("0.250" if kl < 0.25 else "0.250 ≤ floor")
        told = summary_value(result)["note"].splitlines()[1]
        assert told.startswith("Rounding floor of this run (float32): final hidden")
        assert "which entries" not in told
    result.model = replace(result.model, dtype="bfloat16")
    assert "can also change which entries a method keeps" in (summary_value(result)["note"])
    row = rows_of(summary_csv(result))[1]
    assert (row["final_hidden_l1_floor"], row["kl_floor_nats"]) == ("4.0", "0.25")


def test_a_variant_without_perturbation_has_empty_cells():
    result = RunResult(model=TINY, variants=[replace(kept_variant(), perturbation=None)])
    assert {cell(result, 0, key)["text"] for key in ("kl", "final", "head")} == {""}
