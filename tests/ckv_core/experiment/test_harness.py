"""Tasks of lm-evaluation-harness: its own prompts, documents and scores, and what is refused."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ckv_core.errors import CkvError, ConfigError
from ckv_core.experiment import harness
from ckv_core.experiment.harness import LM_EVAL, harness_samples, harness_score
from ckv_core.experiment.scores import score
from ckv_core.experiment.study_file import read_study, write_study
from ckv_core.records.run_request import RunRequest

needs_package = pytest.mark.skipif(
    importlib.util.find_spec(LM_EVAL) is None,
    reason="lm_eval is not installed (requirements-lm-eval.txt)",
)
ROWS = [
    {
        "context": f"The ferry to island {at} leaves at {at} o'clock. Nobody waves.",
        "question": f"When does the ferry to island {at} leave?",
        "answer": f"at {at} o'clock",
        "shots": ["one", "two"],
    }
    for at in range(6)
]
TASK = """
task: ferries
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/test.jsonl, train: {folder}/train.jsonl}}}}
test_split: test
fewshot_split: train
num_fewshot: 1
output_type: generate_until
doc_to_text: "Read.\\n\\n{{{{context}}}}\\n\\nQuestion: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], do_sample: false}}
filter_list:
  - name: clock
    filter: [{{function: regex, regex_pattern: "(at \\\\d+ o'clock)"}}, {{function: take_first}}]
  - name: whole
    filter: [{{function: take_first}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
OTHERS = {
    "ranked": "output_type: multiple_choice\ndoc_to_choice: [a, b]",
    "drawn": "generation_kwargs: {do_sample: true, until: []}",
    "coded": "unsafe_code: true",
    "counted": "process_results: !function mine.counted",
}


@pytest.fixture(scope="module", autouse=True)
def tasks(tmp_path_factory):
    home: Path = tmp_path_factory.mktemp("home")
    folder = home / "lm_eval_tasks"
    folder.mkdir()
    for split in ("test", "train"):
        lines = ROWS if split == "test" else [{**ROWS[0], "context": "An old one."}] * 3
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "ferries.yaml").write_text(TASK.format(folder=folder))
    (folder / "mine.py").write_text("def counted(doc, results):\n    return {'exact_match': 7}\n")
    for name, more in OTHERS.items():
        text = f"include: ferries.yaml\ntask: {name}\n{more}\n"
        (folder / f"{name}.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CKV_HOME", str(home))
        patch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        clear()
        yield
    clear()


def clear() -> None:
    harness._index.cache_clear()
    harness._loaded.cache_clear()


def study(task: str = "ferries", scenario: str = "context-only", **data: object) -> RunRequest:
    return RunRequest(
        name="mine",
        data={LM_EVAL: task, "samples": 4, **data},
        scenario=scenario,
        variants=("snapkv",),
        budgets=("50%",),
    )


# --- without the package ----------------------------------------------------------------------


def test_a_study_file_names_task_samples_metric_and_field():
    text = write_study(study(metric="exact_match,whole", context="passage"))
    assert read_study(text).data == {
        LM_EVAL: "ferries",
        "samples": 4,
        "metric": "exact_match,whole",
        "context": "passage",
    }
    with pytest.raises(ConfigError, match=r"unknown key 'data\.seed'"):
        read_study(write_study(study(seed=1)))


def test_without_the_package_it_says_what_to_install(monkeypatch):
    clear()
    monkeypatch.setattr(harness, "has_harness", lambda: False)
    with pytest.raises(ConfigError, match=r"pip install -r requirements-lm-eval\.txt"):
        harness_samples(study())


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"class": "Task"}, "Python class"),
        ({"output_type": "loglikelihood"}, "type loglikelihood"),
        ({"unsafe_code": True}, "runs the code"),
        ({"doc_to_image": "picture"}, "pictures"),
        ({"repeats": 8}, "by chance"),
        ({}, ""),
    ],
)
def test_what_cannot_be_a_study_is_refused_with_its_reason(config, why):
    refused = harness._refused(config)
    assert (why in refused) if why else not refused


def test_context_and_question_part_where_the_prompt_shows_the_field_once():
    assert harness._parted("A. The text.\n\nWhy?", "The text.") == ("A. The text.", "Why?")
    for prompt in ("The text.\nWhy?", "The text. The text.\n\nWhy?", "Why?", "The text.\n\n "):
        assert harness._parted(prompt, "The text.") == (prompt, "")
    assert harness._parted("x\n\ny", None) == ("x\n\ny", "")


# --- with it ----------------------------------------------------------------------------------


@needs_package
def test_the_prompts_are_those_that_the_package_makes():
    found = harness_samples(study())
    task = harness._load("ferries")
    task.set_fewshot_seed(1234)
    task.build_all_requests(limit=4)
    assert [f"{each.context}\n\n{each.question}" for each in found] == [
        instance.args[0] for instance in task.instances
    ]
    first = found[0]
    assert first.context.endswith(ROWS[0]["context"])
    assert "An old one." in first.context, "an example comes before"
    assert first.question == f"Question: {ROWS[0]['question']}\nAnswer:"
    assert (first.id, first.answers, first.metric) == ("ferries-00001", ("at 0 o'clock",), LM_EVAL)
    assert harness_samples(study())[:2] == found[:2]


@needs_package
@pytest.mark.parametrize(
    ("text", "clock", "whole"),
    [
        (" at 2 o'clock", 1.0, 0.0),
        ("at 2 o'clock\nQuestion: more", 1.0, 1.0),
        ("I think at 2 o'clock.", 1.0, 0.0),
        ("\nat 2 o'clock", 0.0, 0.0),
        ("at 3 o'clock", 0.0, 0.0),
    ],
)
def test_the_score_is_the_packages_own(text, clock, whole):
    by_filter = {
        each: harness_samples(study(metric=f"exact_match,{each}"))[2] for each in ("clock", "whole")
    }
    assert score(text, by_filter["clock"], "token_f1") == clock
    assert score(text, by_filter["whole"], "token_f1") == whole
    assert harness_samples(study())[2] == by_filter["clock"], "the first filter is the default"


@needs_package
@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("ranked", "type multiple_choice"),
        ("drawn", "by chance"),
        ("coded", "runs the code"),
        ("counted", "is 7, and a study needs a score from 0 to 1"),
        ("nowhere", "is unknown"),
        ("mmlu", "is a group of tasks"),
    ],
)
def test_other_tasks_are_refused(task, why):
    with pytest.raises(CkvError, match=why):
        harness_samples(study(task))


@needs_package
def test_a_file_is_no_name_of_a_task(tmp_path):
    file = tmp_path / "evil.yaml"
    file.write_text("task: evil\nprocess_docs: !function evil.run\n")
    with pytest.raises(ConfigError, match="is unknown"):
        harness_samples(study(str(file)))


@needs_package
def test_without_a_place_to_part_only_the_regular_scenario_runs():
    with pytest.raises(ConfigError, match=r"Name another field as data\.context"):
        harness_samples(study(context="question"))
    (sample, *_) = harness_samples(study(scenario="regular", context="question"))
    assert sample.question == ""
    assert sample.context.endswith("\nAnswer:")
    with pytest.raises(ConfigError, match="exact_match,clock, exact_match,whole"):
        harness_samples(study(metric="bleu"))


@needs_package
def test_a_forged_sample_of_an_import_fails_alone():
    (sample, *_) = harness_samples(study())
    forged = (
        {**sample.tags, "document": 99},
        {**sample.tags, "measure": "acc,none"},
        {**sample.tags, "document": "x"},
        {},
    )
    for tags in forged:
        with pytest.raises(CkvError):
            harness_score("a", replace(sample, tags=tags))
    assert harness_score("at 0 o'clock", sample) == 1.0
