"""A study as BibTeX and as a log of Inspect; its own reader takes it where it is installed."""

import json
import re
from datetime import UTC, datetime

import pytest

from ckv_core.methods import METHODS
from ckv_core.studies.bibtex import bibtex
from ckv_core.studies.inspect_log import inspect_log
from ckv_core.studies.records import Study
from tests.ckv_core.studies.test_export import FACTS, RESULTS, SAMPLES, STUDY

STORED = {**FACTS, "created_at": datetime(2026, 11, 23, tzinfo=UTC).isoformat()}


def study_of(*variants: str, **data: object) -> Study:
    return Study(name="a_b", data=data, variants=variants, budgets=("10%",))


def keys(text: str) -> list[str]:
    return re.findall(r"^@misc\{(\w+),$", text, re.MULTILINE)


def test_each_paper_has_one_entry():
    text = bibtex(study_of("full", "snapkv", "h2o", "observed_attention", "snapkv+critical"))
    assert keys(text) == [
        "li2024_2404_14469",
        "zhang2023_2306_14048",
        "feng2025_2502_03805",
        "criticalkv_lab",
    ]
    assert "title = {{H2O: Heavy-Hitter Oracle for Efficient Generative Inference" in text
    assert "note = {Used here: H2O, Observed attention}" in text
    assert "author = {Li and others}" in text
    assert "url = {https://arxiv.org/abs/2404.14469}" in text
    assert r"study a\_b}" in text
    assert "hsieh2024_2404_06654" in keys(bibtex(study_of("snapkv", task="vt")))


def test_a_control_has_no_paper():
    assert keys(bibtex(study_of("random"))) == ["criticalkv_lab"]


def test_every_method_that_names_a_paper_has_an_entry():
    for method in METHODS:
        if method.evicts and "arXiv:" in method.source:
            text = bibtex(study_of(method.name))
            assert len(keys(text)) == 2, method.name
            assert method.title
            assert f"title = {{{{{method.title}}}}}" in text, method.name


def log() -> dict[str, object]:
    found: dict[str, object] = inspect_log(STUDY, SAMPLES, RESULTS, STORED)
    return found


def test_a_sample_has_a_score_for_every_point_and_the_full_caches_text():
    values = json.loads(json.dumps(log()))
    assert (values["version"], values["status"]) == (2, "success")
    assert values["eval"]["dataset"]["sample_ids"] == ["s0", "s1", "s2"]
    first, _, failed = values["samples"]
    assert first["input"] == "A text \u2028 of \x00 0.\n\n?"
    assert set(first["scores"]) == {
        "full",
        *(f"{name} at {at}" for name in STUDY.variants for at in ("10%", "50%")),
    }
    assert first["scores"]["snapkv+critical at 10%"]["value"] == 1 / 3
    assert first["output"]["completion"] == "said \x00"
    assert (failed["scores"], failed["metadata"]["failed"]) == ({}, {"full": "It is too long."})
    (full, *_) = values["results"]["scores"]
    assert full["metrics"]["mean"]["value"] == pytest.approx(1 / 3)


def test_the_package_reads_it(tmp_path):
    reader = pytest.importorskip("inspect_ai.log", reason="inspect_ai is not installed")
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log()))
    found = reader.read_eval_log(str(path))
    assert (found.status, found.eval.task, len(found.samples)) == ("success", "made up", 3)
    assert found.samples[0].scores["full"].as_float() == pytest.approx(1 / 3)
    assert found.results.scores[0].metrics["mean"].value == pytest.approx(1 / 3)
