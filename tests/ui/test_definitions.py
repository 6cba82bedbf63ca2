"""docs/reference/definitions.md defines what is on screen."""

import re
from pathlib import Path

from ckv_core.experiment.plan import FORMULAS
from ckv_core.records.metrics import METRICS
from tests.ui.charts.test_ablation import ablation_run
from ui.charts.ablation import ablation_figure

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reference" / "definitions.md").read_text(encoding="utf-8")


def test_what_charts_call_their_numbers_is_defined():
    panels = [note.text for note in ablation_figure(ablation_run()).layout.annotations]
    own = [each.label for key, each in METRICS.items() if not re.search("_(l2|cosine)", key)]
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
