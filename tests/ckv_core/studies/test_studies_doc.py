"""docs/studies.md says what the code does."""

import json
import re
from pathlib import Path

from ckv_core.studies.data import read_samples
from ckv_core.studies.intervals import needed_without_loss
from ckv_core.studies.scores import METRICS
from ckv_core.studies.spec import STUDY_KEYS, read_study
from ckv_core.studies.tasks import TASKS

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "studies.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found
    return found[1]


def test_the_examples_are_read():
    assert read_study(block("yaml")).name == "needles"
    (sample,) = read_samples(block("json"))
    assert sample.metric == json.loads(block("json"))["metric"]


def test_keys_metrics_and_tasks_are_all_told():
    rows = set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE))
    assert rows == STUDY_KEYS | METRICS.keys()
    assert all(f"`{task}`" in TEXT for task in TASKS)


def test_the_number_of_samples_is_that_of_the_code():
    assert f"{2 * needed_without_loss(0.02)} samples" in TEXT
