"""Tables of the diagnostics: every value once, and no cell that a spreadsheet would run."""

import csv
import io
from dataclasses import replace

import numpy as np

from ckv_core.results.events import RunResult
from ckv_core.results.records import Candidate, FollowUp, ForcedStep
from tests.factories.events import big_events, folded
from tests.factories.runs import analysed, done_result
from ui.charts.run_csv import follow_ups_csv, teacher_forced_csv
from ui.tables.summary import summary_csv, summary_value

HOSTILE = "=HYPERLINK(1)"


def run() -> RunResult:
    result = folded(big_events(tokens=16, variants=1))
    result.variants[0] = replace(
        result.variants[0],
        spec=HOSTILE,
        label=HOSTILE,
        forced_steps=(ForcedStep((Candidate(7, HOSTILE, 0.5),), (Candidate(8, "b", 0.25),)),),
        follow_ups=(
            FollowUp(
                question=HOSTILE,
                text=HOSTILE,
                token_ids=(1,),
                token_texts=("a",),
                stopped="eos",
                agreement=0.5,
                first_difference=None,
            ),
        ),
    )
    return result


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_candidates_of_both_caches_are_listed():
    found = rows(teacher_forced_csv(run()))
    assert [(row["cache"], row["token_id"], row["probability"]) for row in found] == [
        ("full", "7", "0.5"),
        ("variant", "8", "0.25"),
    ]


def test_each_candidate_stands_beside_what_was_measured_at_its_step():
    found = rows(teacher_forced_csv(analysed()))
    names = ("forced_kl", "forced_rank", "forced_top1")
    assert {row["variant"] for row in found} == {"1", "2"}
    for step, figures in (("0", ("0.001", "1.0", "1.0")), ("1", ("2.0", "7.0", "0.0"))):
        of_step = [row for row in found if row["step"] == step]
        assert {tuple(row[name] for name in names) for row in of_step} == {figures}
        assert {row["cache"] for row in of_step} == {"full", "variant"}


def test_a_step_that_was_not_measured_has_empty_figures():
    assert {row["forced_kl"] for row in rows(teacher_forced_csv(run()))} == {""}


def test_no_cell_starts_as_a_formula():
    for table in (teacher_forced_csv, follow_ups_csv, summary_csv):
        found = rows(table(run()))
        assert found
        cells = [cell for row in found for cell in row.values()]
        assert f"'{HOSTILE}" in cells
        assert not any(cell.startswith("=") for cell in cells)


def shown(result: RunResult, *, ended: bool = True) -> dict[str, bool]:
    """Columns of the summary by key, and whether each waits until it is asked for."""
    value = summary_value(result, ended=ended)
    return {column["key"]: column["extra"] for column in value["columns"]}


def test_the_summary_begins_with_the_columns_of_weight():
    found = shown(done_result())
    assert [*found][:2] == ["answer", "agreement"]
    assert found["first_difference"]
    weight = ("retained_entries", "cache_bytes", "agreement", "kl", "final", "improved_heads")
    assert not any(found[key] for key in (*weight, "answer"))


def test_a_column_that_stayed_empty_is_left_out_and_one_with_a_warning_never_waits():
    result = done_result()
    result.variants = [variant for variant in result.variants if not variant.critical]
    assert "improved_heads" not in shown(result)
    assert not shown(result, ended=False)["improved_heads"]
    receipt = replace(result.variants[1].receipt, retained_entries=1, cache_bytes=1)
    result.variants[1] = replace(result.variants[1], receipt=receipt)
    assert not shown(result)["retained_entries"]
    assert not shown(result)["cache_bytes"]


def test_the_summary_csv_has_the_fidelity_and_the_scores_of_every_variant():
    result = done_result()
    result.variants[1] = replace(
        result.variants[1],
        analysis={
            "forced_top1": np.array([1, 0], np.float32),
            "forced_kl": np.array([0.5, 1.0], np.float32),
            "forced_rank": np.array([1, 3], np.float32),
        },
        stopped="eos",
        answer_scores={"exact_match": 0.0, "token_f1": 0.5, "edit_similarity": 0.25},
    )
    full, row, other = rows(summary_csv(result))
    assert (row["forced_top1_mean"], row["forced_kl_mean_nats"]) == ("0.5", "0.75")
    assert (row["forced_rank_mean"], row["exact_match"], row["token_f1"]) == ("2.0", "0.0", "0.5")
    assert row["edit_similarity"] == "0.25"
    assert full["forced_kl_mean_nats"] == other["token_f1"] == ""
