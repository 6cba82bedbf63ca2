"""A study that was exported with its data is read back as it was; a forged file is refused."""

import copy
import json
import random
from contextlib import suppress
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.errors import ConfigError
from ckv_core.studies.export import export, read_export
from ckv_core.studies.methods_text import methods_text
from ckv_core.studies.records import Sample, SampleResult, Study
from tests.factories.runs import model_info
from tests.factories.scored import scored

STUDY = Study(
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
        cache_bytes=100,
        full_cache_bytes=1000,
        head_l1=0.25,
        agreement=1.0,
    )
    for sample in SAMPLES[:2]
    for point in STUDY.points()
] + [
    SampleResult(sample="s2", variant="full", budget=None, state="failed", reason="It is too long.")
]


def document() -> dict[str, object]:
    found: dict[str, object] = export(STUDY, SAMPLES, RESULTS, FACTS, with_data=True)
    return found


def test_it_is_read_back_as_it_was():
    found = read_export(json.dumps(document()))
    assert found.study == STUDY
    assert found.samples == SAMPLES
    assert list(found.results) == RESULTS
    assert found.model == MODEL
    assert found.environment == FACTS["environment"]


def test_without_its_data_it_says_how_to_export_it():
    values = export(STUDY, SAMPLES, RESULTS, FACTS)
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
        (("data", "samples", 0, "id"), "", "an id"),
        (("data", "samples", 0, "context"), "", "context"),
        (("data", "samples", 0, "answers"), [], "an answer"),
        (("data", "samples", 0, "metric"), "mine", "one of"),
        (("data", "samples", 0, "tags"), {"task": [1]}, "tags"),
        (("data", "results", 0, "score"), 1.5, "score"),
        (("data", "results", 0, "score"), "1", "score"),
        (("data", "results", 0, "state"), "won", "one of done, failed"),
        (("data", "results", 0, "budget"), "20%", "one result at most"),
        (("data", "results", 0, "sample"), "s9", "one result at most"),
        (("data", "results", 1), None, "results"),
        (("study", "model_info", "kv_heads"), 3, "kv_heads"),
    ],
)
def test_a_forged_file_is_refused_where_it_is_wrong(path, value, words):
    values = copy.deepcopy(document())
    at = values
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(ConfigError, match=words):
        read_export(json.dumps(values))


@given(st.text(max_size=40) | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_no_text_breaks_it(text):
    with pytest.raises(ConfigError):
        read_export(text)


@given(seed=st.integers(0, 2**32))
def test_no_part_of_it_that_is_another_breaks_it(seed):
    rng = random.Random(seed)
    values = copy.deepcopy(document())
    at, path = values, []
    while isinstance(at, dict | list) and at:
        step = rng.choice([*at] if isinstance(at, dict) else [*range(len(at))])
        path.append((at, step))
        at = at[step]
        if rng.random() < 0.2:
            break
    holder, step = path[-1]
    holder[step] = rng.choice([None, -1, 1e308, "x" * 5000, [], {}, True, [[[]]], "\ud800"])
    with suppress(ConfigError):
        read_export(json.dumps(values))


def test_the_methods_paragraph_names_the_harness_and_its_score():
    tags = {"task": "ferries", "measure": "exact_match,none", "lm_eval": "0.4.13"}
    own = replace(SAMPLES[0], metric="lm_eval", tags=tags)
    assert "scored by exact_match,none of lm_eval 0.4.13." in methods_text(STUDY, [own], [], {})


def test_the_methods_paragraph_names_every_setting():
    text = str(document()["study"]["methods_text"])  # type: ignore[index]
    for part in (
        "arXiv:2404.14469",
        "arXiv:2502.03805",
        "window 8",
        "3 samples",
        "Only 10 of the 15 scores are there and count.",
        "10% and 50%",
        "weights sha256 abababababab",
        "token_f1",
        "torch 2.13",
    ):
        assert part in text
