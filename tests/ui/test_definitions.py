"""docs/definitions.md defines what is on screen, and names the file that computes it."""

import re
from pathlib import Path

import pytest

from ckv_core.experiment.plan import FORMULAS
from ckv_core.records.metrics import METRICS
from tests.ui.charts.test_ablation import ablation_run
from ui.charts.ablation import ablation_figure

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "definitions.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("| ")]
# Where a number of the receipt or of the clock is written down.
WRITTEN = {
    "Requested entries": "requested_entries",
    "Retained entries": "retained_entries",
    "Full cache bytes": "full_cache_bytes",
    "Below the rounding floor": "within_floor",
    "`prefill`": '"prefill"',
    "`score`": '"score"',
    "`select`": '"select"',
    "`question`": '"question"',
    "`decode`": '"decode"',
    "`measure`": '"measure"',
}


def source_of(name):
    (row,) = [row for row in ROWS if row[0] == name]
    return re.findall(r"`([\w/]+\.py)`", row[-1])


@pytest.mark.parametrize("name", WRITTEN)
def test_the_source_of_a_number_writes_it(name):
    paths = source_of(name)
    assert paths
    for path in paths:
        assert WRITTEN[name] in (ROOT / path).read_text(encoding="utf-8"), path


def test_what_charts_call_their_numbers_is_defined():
    panels = [note.text for note in ablation_figure(ablation_run()).layout.annotations]
    own = [metric.label for metric in METRICS.values()]
    marked = re.sub(r"\*\*|`|\\(?=\|)", "", TEXT)
    for label in (
        *panels,
        *own,
        *FORMULAS,
        *FORMULAS.values(),
        "Tightness, L / theta",
        "difference to its base",
    ):
        assert label in marked, label
