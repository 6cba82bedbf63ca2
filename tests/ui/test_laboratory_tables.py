"""Tables of the laboratory: every value once, and no cell that a spreadsheet would run."""

import csv
import io
from dataclasses import replace

import numpy as np

from ckv_core.events import RunResult
from ckv_core.records import Candidate, FollowUp, ForcedStep
from tests.storage.run_strategies import big_events, folded
from ui.charts.tables import analysis_csv, follow_ups_csv, forced_csv
from ui.summary_csv import summary_csv

HOSTILE = "=HYPERLINK(1)"


def run() -> RunResult:
    result = folded(big_events(tokens=16, variants=1))
    heads = np.arange(270, dtype=np.float32).reshape(30, 9)
    heads[3] = np.nan
    result.variants[0] = replace(
        result.variants[0],
        spec=HOSTILE,
        label=HOSTILE,
        analysis={
            "theta": heads,
            "hidden_l2": np.ones(30, np.float32),
            "normed_l1": np.ones(1, np.float32),
            "forced_kl": np.ones(2, np.float32),
        },
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


def test_every_value_of_every_quantity_is_one_line_with_its_axes_and_unit():
    found = rows(analysis_csv(run()))
    assert len(found) == 270 + 30 + 1 + 2
    last = [row for row in found if row["quantity"] == "theta"][-1]
    assert (last["layer"], last["query_head"], last["step"]) == ("29", "8", "")
    assert (float(last["value"]), last["unit"]) == (269, "L1")
    assert {row["value"] for row in found if row["layer"] == "3" and row["query_head"]} == {""}
    assert (found[-1]["step"], found[-1]["layer"], found[-1]["unit"]) == ("1", "", "nats")


def test_candidates_of_both_caches_are_listed():
    found = rows(forced_csv(run()))
    assert [(row["cache"], row["token_id"], row["probability"]) for row in found] == [
        ("full", "7", "0.5"),
        ("variant", "8", "0.25"),
    ]


def test_no_cell_starts_as_a_formula():
    for table in (analysis_csv, forced_csv, follow_ups_csv, summary_csv):
        found = rows(table(run()))
        assert found
        cells = [cell for row in found for cell in row.values()]
        assert f"'{HOSTILE}" in cells
        assert not any(cell.startswith("=") for cell in cells)
