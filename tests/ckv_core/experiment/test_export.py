"""A study as a file of its own and as a log of Inspect: what is written is read."""

import json
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.errors import ConfigError
from ckv_core.experiment.export import export, read_export
from ckv_core.experiment.inspect_log import inspect_log
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.study import Sample, SampleResult
from ckv_core.records.run_request import FULL, RunRequest
from tests.factories.hostile import JUNK, forged, paths
from tests.factories.runs import model_info
from tests.factories.scored import scored

STUDY = RunRequest(
    name="made up",
    data={"file": "samples.jsonl", "columns": {"context": "passage"}},
    variants=("snapkv:window=8", "snapkv+critical"),
    budgets=("10%", "50%"),
    metric="token_f1",
)
SAMPLES = tuple(
    Sample(
        id=f"s{at}",
        context=f"A text \u2028 of \x00 {at}.",
        question="?",
        answers=("one", "two"),
        metric="classification" if at else "",
        source="book",
        tags={"task": "trec", "length": 512, "depth": 0.5},
        choices=("one", "three"),
    )
    for at in range(3)
)
MODEL = model_info(name="tiny", sha256="ab" * 32)
FACTS = {
    "state": "done",
    "model_info": json.loads(json.dumps(asdict(MODEL))),
    "environment": {"python": "3.11", "torch": "2.13"},
}
RESULTS = [
    scored(
        sample.id,
        point.variant,
        point.budget,
        1 / 3,
        text="said \x00",
        stopped="length",
        prompt_tokens=40,
        figures={"cache_bytes": 100, "full_cache_bytes": 1000, "head": 0.25, "agreement": 1.0},
    )
    for sample in SAMPLES[:2]
    for point in STUDY.points()
] + [
    SampleResult(sample="s2", variant="full", budget=None, state="failed", reason="It is too long.")
]


READING = Reading(STUDY, SAMPLES, RESULTS, facts=FACTS)
DOCUMENT = export(READING, with_data=True)


def test_it_is_read_back_as_it_was():
    found = read_export(json.dumps(DOCUMENT))
    assert found.study == STUDY
    assert found.samples == SAMPLES
    assert list(found.results) == RESULTS
    kept = ("model_info", "environment")
    assert found.facts == {name: FACTS[name] for name in kept}
    for point in DOCUMENT["decision"]["points"]:
        assert (point["cache_share"], point["head_l1"]) == (0.1, 0.25)


def test_without_its_data_it_says_how_to_export_it():
    values = export(READING)
    assert "data" not in values
    with pytest.raises(ConfigError, match="export it with its data"):
        read_export(json.dumps(values))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("schema",), 2, "schema"),
        (("study", "variants"), ["nothing"], "nothing"),
        (("study", "name"), "\x1b[2J", "control characters"),
        (("data", "samples", 0, "id"), "s1", "each id is expected once"),
        (("data", "samples", 0, "id"), "", "wrong at data.samples.0..id"),
        (("data", "samples", 0, "context"), "", "context"),
        (("data", "samples", 0, "answers"), [], "answers: an array of at least 1"),
        (("data", "samples", 0, "metric"), "mine", "one of"),
        (("data", "samples", 0, "tags"), {"task": [1]}, "tags"),
        (("data", "results", 0, "score"), 1.5, "score"),
        (("data", "results", 0, "score"), "1", "score"),
        (("data", "results", 0, "state"), "won", "one of done or failed"),
        (("data", "results", 0, "budget"), "20%", "one result at most"),
        (("data", "results", 0, "sample"), "s9", "one result at most"),
        (("data", "results", 1), None, "results"),
        (("study", "model_info", "kv_heads"), 3, "kv_heads"),
    ],
)
def test_a_forged_file_is_refused_where_it_is_wrong(path, value, words):
    with pytest.raises(ConfigError, match=words):
        read_export(json.dumps(forged(DOCUMENT, path, value)))


@given(st.text(max_size=40) | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_no_text_breaks_it(text):
    with pytest.raises(ConfigError):
        read_export(text)


@given(path=st.sampled_from([*paths(DOCUMENT)]), junk=JUNK | st.sampled_from([1e308, "\ud800"]))
def test_no_part_of_it_that_is_another_breaks_it(path, junk):
    with suppress(ConfigError):
        read_export(json.dumps(forged(DOCUMENT, path, junk)))


# --- a log of Inspect -------------------------------------------------------------------------

STORED = {**FACTS, "created_at": datetime(2026, 11, 23, tzinfo=UTC).isoformat()}
OWN_TEXTS = [each if each.variant == FULL else replace(each, text="") for each in RESULTS]
LOG = json.dumps(inspect_log(replace(READING, results=OWN_TEXTS, facts=STORED)))


def test_a_sample_has_a_score_for_every_point_and_the_full_caches_text():
    values = json.loads(LOG)
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
    path.write_text(LOG)
    found = reader.read_eval_log(str(path))
    assert (found.status, found.eval.task, len(found.samples)) == ("success", "made up", 3)
    assert found.samples[0].scores["full"].as_float() == pytest.approx(1 / 3)
    assert found.results.scores[0].metrics["mean"].value == pytest.approx(1 / 3)
