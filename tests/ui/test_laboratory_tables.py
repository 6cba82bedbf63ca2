"""Tables of the laboratory: every value once, and no cell that a spreadsheet would run."""

import csv
import io
from dataclasses import replace

from ckv_core.events import RunResult
from ckv_core.records import Candidate, FollowUp, ForcedStep
from tests.storage.run_strategies import big_events, folded
from ui.charts.tables import follow_ups_csv, forced_csv
from ui.summary_csv import summary_csv

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
    found = rows(forced_csv(run()))
    assert [(row["cache"], row["token_id"], row["probability"]) for row in found] == [
        ("full", "7", "0.5"),
        ("variant", "8", "0.25"),
    ]


def test_no_cell_starts_as_a_formula():
    for table in (forced_csv, follow_ups_csv, summary_csv):
        found = rows(table(run()))
        assert found
        cells = [cell for row in found for cell in row.values()]
        assert f"'{HOSTILE}" in cells
        assert not any(cell.startswith("=") for cell in cells)
