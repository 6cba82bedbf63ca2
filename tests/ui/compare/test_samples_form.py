"""Many samples in the form: what it takes, what it refuses, and the mapping shown before."""

import json
from dataclasses import replace

import pytest

from ckv_core.errors import ConfigError
from ckv_core.experiment.data import read_samples
from ckv_core.experiment.study import Sample
from ckv_core.records.grid import cost
from ui.compare.form_values import CONTROL_NAMES, FormValues, read_run_slugs
from ui.compare.samples import (
    MOST_CHARS,
    cost_sentence,
    file_columns,
    fingerprint,
    form_of_study,
    is_exported,
    plan_sentence,
    sample_lines,
    sample_map,
    study_of,
)

LINE = {"context": "A long text.", "question": "Why?", "answers": ["because", "so"]}
JSONL = "\n".join(json.dumps({"id": f"q{at}", **LINE}) for at in range(5))
CSV = "passage,q,gold,extra\nA long text.,Why?,because,1\nAnother.,When?,now,2\n"
COLUMNS = "context=passage, question=q, answers=gold"


OWN = FormValues(mode="many", name="mine", data=JSONL, budget="10%, 50%")


def form(**changes: object) -> FormValues:
    values = dict(zip(CONTROL_NAMES, OWN.controls(), strict=True)) | changes
    return FormValues.from_controls(list(values.values()))


def test_a_pasted_file_becomes_a_run_with_every_setting():
    study = study_of(form(tolerance="3", max_new_tokens=16.0))
    assert study.data == {"file": "samples.jsonl"}
    assert study.variants == ("full", *OWN.variants)
    assert (study.tolerance, study.max_new_tokens) == (3.0, 16)
    assert study_of(form(data=CSV, columns=COLUMNS)).data == {
        "file": "samples.csv",
        "columns": {"context": "passage", "question": "q", "answers": "gold"},
    }

    data = study_of(form(source="task", length="1024, 2048", samples="20", sample_seed="3")).data
    assert (data["length"], data["samples"], data["seed"]) == ([1024, 2048], 20, 3)
    data = study_of(form(source="lm_eval", lm_eval=" gsm8k ", samples="3")).data
    assert data == {"lm_eval": "gsm8k", "samples": 3}
    data = study_of(form(source="runs", runs="a1b2c3d4e5f6, b1b2c3d4e5f6")).data
    assert data == {"runs": ["a1b2c3d4e5f6", "b1b2c3d4e5f6"]}


def test_alphas_and_parameters_of_the_form_hold_for_many_samples_too():
    chips = ("snapkv:window=16", "snapkv+critical:stage2=raw,window=16", "knorm")
    asked = form(alpha="0, 0.5")
    typed = replace(asked, variants=chips)
    assert list(dict.fromkeys(point.variant for point in study_of(typed).points())) == [
        "full",
        "snapkv:window=16",
        "snapkv+critical:window=16,alpha=0.0,stage2=raw",
        "snapkv+critical:window=16,alpha=0.5,stage2=raw",
        "knorm",
    ]
    assert fingerprint(typed) != fingerprint(asked) == fingerprint(replace(asked))


def test_texts_of_runs_are_written_as_a_file_that_is_read_back():
    samples = tuple(
        Sample(
            id=f"run{at}",
            context="A \u2028 text",
            question="?",
            answers=("a|b",),
            source="run0",
            metric="token_f1",
            tags={"depth": 0.5},
            choices=("a|b", "c"),
        )
        for at in range(2)
    )
    assert read_samples(sample_lines(samples)) == samples
    long = replace(samples[0], context="x" * MOST_CHARS)
    with pytest.raises(ConfigError, match=r"name them as data\.runs"):
        sample_lines([long])
    assert read_run_slugs("a1b2c3d4e5f6, a1b2c3d4e5f6") == ["a1b2c3d4e5f6"]
    for text in ("<b>", ",".join(f"a1b2c3d4e{at:03}" for at in range(101))):
        with pytest.raises(ConfigError, match="Name 1 to 100 runs"):
            read_run_slugs(text)


def test_the_mapping_is_shown_with_the_first_samples():
    shown = sample_map(form())
    rows = {row["own"]: row for row in shown["rows"]}
    assert (rows["answers"]["values"], rows["metric"]["from"]) == (["because | so"] * 3, "")
    assert [row["from"] for row in shown["rows"][:4]] == ["id", "context", "question", "answers"]
    shown = sample_map(form(data=CSV, columns=COLUMNS))
    assert (shown["text"], shown["unread"]) == ("2 samples.", "Not read: extra.")
    assert shown["rows"][1]["from"] == "passage"
    # A mapping that is not complete stays as it was chosen.
    half = sample_map(form(data=CSV, columns="context=passage"))
    assert [row["from"] for row in half["rows"][:4]] == ["", "passage", "", ""]
    assert half["rows"][1]["values"] == []
    wide = ",".join(f"c{at}" for at in range(9_000)) + "\n"
    assert len(json.dumps(sample_map(form(data=wide)))) < 8_000  # what is sent to the page
    names = ("_id", "input", "context", "answers", "all_classes", "dataset")
    published = json.dumps(dict.fromkeys(names, "x") | {"dataset": "qasper"})
    own = {row["own"]: row["from"] for row in sample_map(form(data=published))["rows"]}
    assert (own["question"], own["id"]) == ("input", "_id")
    assert sample_map(form(data="")) is sample_map(form(source="task")) is None


def test_the_form_says_what_so_many_samples_can_show_at_this_tolerance():
    asked = form(
        data="", source="task", length="512, 1024", samples="25", variants=["full", "snapkv"]
    )
    words = "With 1 method, 50 samples can confirm that a method loses at most 6.8 points ("
    assert plan_sentence(asked).startswith(words)
    more = "Confirming 5 points takes 69 samples in all; 2 points takes 175."
    assert plan_sentence(asked).endswith(more)
    assert plan_sentence(form(name="")).startswith("With 4 methods, 5 samples can confirm")
    one = "\n".join(json.dumps({"id": f"q{at}", "source": "a", **LINE}) for at in range(9))
    assert "1 sample can" in plan_sentence(form(data=one))
    assert plan_sentence(form(data="")) == plan_sentence(form(data='{"schema": 1}')) == ""
    assert plan_sentence(form(source="runs", runs=" ")) == ""
    with pytest.raises(ConfigError, match="answers is empty") as raised:
        plan_sentence(form(data='{"context": "a"}'))
    assert raised.value.field == "data"
    with pytest.raises(ConfigError, match="Samples must be a whole number from 1") as raised:
        plan_sentence(form(source="task", samples="0"))
    assert raised.value.field == "samples"


def test_what_it_takes_is_said_before_with_memory_where_the_models_sizes_are_known():
    study = study_of(form(model="meta-llama/Llama-3.1-8B-Instruct"))
    taken = cost(study, [(2_000, 9)] * 5)
    words = cost_sentence(study, taken)
    assert " on two CPU cores, and 3" in words
    assert " GiB of memory. 5 samples, 9 results each;" in words
    assert cost_sentence(replace(study, budgets=("10%",)), taken) != words
    assert "memory" not in cost_sentence(replace(study, model="nobody/knows"), taken)


def test_a_study_fills_the_form_with_more_samples_or_with_its_own_as_a_file():
    study = study_of(form(source="task", length="512, 1024", samples="20", tolerance="3"))
    again = form_of_study(study, (), add=15)
    assert replace(study_of(again), data=study.data) == study
    assert study_of(again).data == study.data | {"samples": 28}
    two = study_of(replace(again, task=("vt", "para_hops")))
    assert two.data["task"] == ["vt", "para_hops"]
    assert study_of(form_of_study(two, (), add=8)).data == two.data | {"samples": 30}
    pasted = study_of(form())
    samples = read_samples(JSONL)
    again = form_of_study(pasted, samples, add=15)
    assert study_of(again) == pasted
    assert read_samples(again.data) == samples


def test_an_exported_run_is_no_list_of_samples():
    exported = form(data='{"schema": 1, "study": {}}')
    assert is_exported(exported)
    assert sample_map(exported) is None
    assert not is_exported(form())
    assert not is_exported(replace(exported, source="task"))


def test_a_wrong_mapping_is_refused():
    with pytest.raises(ConfigError, match=r"must read NAME=COLUMN"):
        sample_map(form(columns="contxt=a"))


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"name": " "}, "Give the run a name"),
        ({"data": "  "}, "Paste the samples"),
        ({"source": "lm_eval"}, "data.lm_eval"),
        ({"source": "runs", "runs": "<b>"}, "Name 1 to 100 runs"),
        ({"source": "task", "length": "many"}, "Length must be a whole number"),
        ({"source": "task", "sample_seed": "-1"}, "Seed must be a whole number"),
        ({"source": "elsewhere"}, "where the samples come from"),
        ({"tolerance": "x"}, "Tolerance must be a number"),
        ({"tolerance": "-1"}, "Tolerance must be a number"),
        ({"variants": []}, "at least one method that evicts"),
        ({"variants": "snapkv"}, "no list of methods"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(changes, refusal):
    with pytest.raises(ConfigError, match=refusal):
        study_of(form(**changes))


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"a": ' * 5000, "a,b\n1,2", '"'])
def test_columns_of_any_text_can_be_asked_for(text):
    for name in ("samples.jsonl", "samples.csv"):
        assert isinstance(file_columns(text, name), list)
