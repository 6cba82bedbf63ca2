"""Figures and pairs are what the tables give; the tables' pairs are of the same samples."""

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from benchmarks.findings import adjusted, lines_of, pages, read
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.methods.base import KEEP_QUESTION
from ckv_core.records.run_request import RunRequest
from ckv_core.records.variants import VariantSpec


def test_figures_and_pairs_are_made_of_the_tables():
    for path, text in pages().items():
        assert path.suffix == ".md" or ET.fromstring(text).tag.endswith("svg")
        assert path.read_text("utf-8") == text, f"{path.name}: run `make findings`"


@pytest.mark.parametrize("name", ["answers", "methods", "needles", "needles_2k", "earlier_pairs"])
def test_no_table_has_withdrawn_rows(name):
    """They are of methods that did not keep the question, which they do today."""
    for row in read(f"{name}.csv"):
        spec = VariantSpec.parse(row["variant"], {"budget": "20%"})
        assert row["scenario"] == "context-only" or KEEP_QUESTION.name not in spec.params


def result(at: int, variant: str, score: float | None, l1: float) -> SampleResult:
    stopped = "length" if score is None else "eos"
    first = SampleResult(sample=f"s{at}", variant=variant, budget="20%", state="done", score=score)
    return replace(first, stopped=stopped, figures={"final": l1, "head": l1, "kl": 0.1})


def test_pairs_are_of_the_same_samples_and_adjusted_over_their_family():
    samples = [
        Sample(id=f"s{at}", context="c", question="q", answers=("a",), tags={"task": "t"})
        for at in range(12)
    ]
    base = [result(at, "snapkv", float(at < 6), 2.0 + at) for at in range(12)]
    scores = [None if at == 1 else float(at in (0, 6)) for at in range(12)]
    own = [result(at, "snapkv+critical", scores[at], 1.0 + at / 2) for at in range(12)]
    other = [result(at, "adakv", float(at < 6), 2.0 + at) for at in range(11)]
    study = RunRequest(name="r", scenario="regular")
    run = Reading(study, samples, (*base, *own, *other))
    ada, snapkv, critical = adjusted(lines_of(run))
    assert (snapkv["answered"], snapkv["n"], "p" in snapkv) == (6, 12, False)
    assert (critical["gained"], critical["lost"], critical["cut"]) == (1, 5, 1)
    assert critical["p"] == critical["holm_p"] == pytest.approx(14 / 64)
    assert critical["l1_change"] == pytest.approx(-0.5)
    assert (ada["n"], ada["lost"], ada["family"]) == (11, 0, "others")
