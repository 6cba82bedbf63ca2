"""The form of a new study: what it takes, what it refuses, and the mapping shown before."""

import json
from dataclasses import replace

import pytest

from ckv_core.errors import ConfigError
from ckv_core.studies.data import read_samples
from ckv_core.studies.records import Sample
from ui.studies.forms import (
    MOST_CHARS,
    STUDY_CONTROLS,
    StudyForm,
    file_columns,
    preview,
    read_run_slugs,
    sample_lines,
)

LINE = {"context": "A long text.", "question": "Why?", "answers": ["because", "so"]}
JSONL = "\n".join(json.dumps({"id": f"q{at}", **LINE}) for at in range(5))
CSV = "passage,q,gold,extra\nA long text.,Why?,because,1\nAnother.,When?,now,2\n"
COLUMNS = "context=passage, question=q, answers=gold"


def form(**changes: object) -> StudyForm:
    values = {name: getattr(StudyForm(name="mine", data=JSONL), name) for name in STUDY_CONTROLS}
    return StudyForm.from_controls([(values | changes)[name] for name in STUDY_CONTROLS])


def test_a_pasted_file_becomes_a_study_with_every_setting():
    study = form(tolerance=3.0, max_new_tokens=16.0).study()
    assert study.data == {"file": "samples.jsonl"}
    assert study.variants == StudyForm().methods
    assert (study.tolerance, study.max_new_tokens) == (3.0, 16)
    assert form(data=CSV, columns=COLUMNS).study().data == {
        "file": "samples.csv",
        "columns": {"context": "passage", "question": "q", "answers": "gold"},
    }

    data = form(source="task", length="1024, 2048", samples=20.0, seed=3.0).study().data
    assert (data["length"], data["samples"], data["seed"]) == ([1024, 2048], 20, 3)
    data = form(source="lm_eval", lm_eval=" gsm8k ", samples=3.0).study().data
    assert data == {"lm_eval": "gsm8k", "samples": 3}


def test_texts_of_runs_are_written_as_a_file_that_is_read_back():
    samples = tuple(
        Sample(
            id=f"run{at}", context="A \u2028 text", question="?", answers=("a|b",), source="run0"
        )
        for at in range(2)
    )
    assert read_samples(sample_lines(samples)) == samples
    long = replace(samples[0], context="x" * MOST_CHARS)
    with pytest.raises(ConfigError, match=r"name them as data\.runs"):
        sample_lines([long])
    assert read_run_slugs("a1b2c3d4e5f6, a1b2c3d4e5f6") == ["a1b2c3d4e5f6"]
    for text in ("<b>", ",".join(f"a1b2c3d4e{at:03}" for at in range(101))):
        with pytest.raises(ConfigError, match="Name up to 100 runs"):
            read_run_slugs(text)


def test_the_mapping_is_told_with_the_first_samples():
    told, table = preview(form())
    assert told.startswith("5 samples: id from id, context from context")
    assert [row["cells"]["answers"]["text"] for row in table["rows"]] == ["because | so"] * 3
    told, table = preview(form(data=CSV, columns=COLUMNS))
    assert told == (
        "2 samples: context from passage, question from q, answers from gold. Not read: extra."
    )
    assert preview(form(data="")) == ("", None)


def test_an_exported_study_is_no_list_of_samples():
    exported = form(data='{"schema": 1, "study": {}}')
    assert exported.is_exported
    assert preview(exported) == ("An exported study: Run stores it with its results.", None)
    assert not form().is_exported
    assert not form(source="task", data=exported.data, length="512", samples=2.0).is_exported


def test_a_wrong_mapping_names_the_columns_of_the_file():
    with pytest.raises(ConfigError, match=r"The file's columns: passage, q, gold, extra\."):
        preview(form(data=CSV))
    with pytest.raises(ConfigError, match=r"must read NAME=COLUMN"):
        preview(form(columns="contxt=a"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": " "}, "Give the study a name"),
        ({"data": "  "}, "Paste the samples"),
        ({"source": "lm_eval"}, "data.lm_eval"),
        ({"source": "task", "length": "many"}, "The length must be a whole number"),
        ({"tolerance": "x"}, "The tolerance must be a number"),
        ({"methods": []}, "at least one variant"),
        ({"budgets": "10%, 128"}, "all in percent"),
        ({"scenario": "elsewhere"}, "scenario"),
        ({"methods": "snapkv"}, "Choose at least one method"),
        ({"metric": "nonsense"}, "metric"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(changes, said):
    with pytest.raises(ConfigError, match=said):
        form(**changes).study()


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"a": ' * 5000, "a,b\n1,2", '"'])
def test_columns_of_any_text_can_be_asked_for(text):
    for name in ("samples.jsonl", "samples.csv"):
        assert isinstance(file_columns(text, name), list)
