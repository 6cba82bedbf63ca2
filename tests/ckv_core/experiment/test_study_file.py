"""A study file is read whole or refused with one sentence; so is a data file."""

import json
import re
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.errors import ConfigError
from ckv_core.experiment.data import LINE_BOUNDS, MAX_VALUES, read_file, read_samples
from ckv_core.experiment.decide import fewest_sources
from ckv_core.experiment.scores import METRICS, score
from ckv_core.experiment.study import MAX_SAMPLES
from ckv_core.experiment.study_file import STUDY_KEYS, read_study, write_study
from ckv_core.experiment.tasks import TASKS, make_samples
from ckv_core.experiment.tasks.paraphrase import RELATIONS, ROLES
from ckv_core.records.run_request import Point, RunRequest

FILE = """
name: needles
model: SmolLM2-135M-Instruct
data: {file: samples.jsonl}        # or {task: niah_multikey_1, length: 2048, samples: 50, seed: 1}
scenario: context-only
variants: [full, snapkv, snapkv+critical]
budgets: [20%, 10%]
max_new_tokens: 16
metric: string_match
"""


MANY = [*range(64, 81)]
COLUMNS = {str(each): "x" for each in MANY}


def changed(old: str, new: str) -> str:
    assert old in FILE
    return FILE.replace(old, new)


def test_the_file_of_the_documentation_is_read():
    study = read_study(FILE)
    assert (study.name, study.scenario, study.max_new_tokens) == ("needles", "context-only", 16)
    assert study.points() == (
        Point("full", None),
        Point("snapkv", "10%"),
        Point("snapkv", "20%"),
        Point("snapkv+critical", "10%"),
        Point("snapkv+critical", "20%"),
    )
    assert study.points()[4].spec == "snapkv+critical:budget=20%"
    # The full cache is part of every study.
    assert read_study(changed("full, ", "")).points() == study.points()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "key: value lines"),
        ("- a", "key: value lines"),
        ("name: [", "no YAML at line"),
        ("a: &x 1\nb: *x", "alias"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 9 + "]" * 9, "nested too deeply"),
        ("[" * 8 + "]" * 8, "key: value lines"),
        (f"[{'[], ' * 9}]", "key: value lines"),
        (f"a: {'1' * 41}", "a number that is too long"),
        (f"a: '{'1' * 41}'", "unknown key 'a'"),
        (FILE + "name: again", "'name' twice"),
        (FILE + "budget: 3", "unknown key 'budget'"),
        (FILE + "time: true", "has 'time', which only a run of one text takes"),
        (changed("name: needles", ""), "wrong at name"),
        (changed("snapkv,", "snapkw,"), "Did you mean 'snapkv'?"),
        (changed("snapkv,", "snapkv:budget=10%,"), "list it under budgets"),
        (changed("snapkv,", "snapkv, snapkv,"), "listed twice"),
        (changed("[full, snapkv, snapkv+critical]", "[full]"), "at least one method that evicts"),
        (changed("[20%, 10%]", "[]"), "at least one budget"),
        (changed("[20%, 10%]", "[20%, 128]"), "all in percent"),
        (changed("[20%, 10%]", "[12MiB]"), "all in percent"),
        (changed("[20%, 10%]", "[8]"), "raise the budget to at least 32"),
        (changed("context-only", "other"), "regular or context-only"),
        (changed("tokens: 16", "tokens: 0"), "New tokens must be from 1"),
        (changed("metric: string_match", "metric: best"), "wrong at metric"),
        (changed("{file: samples.jsonl}", "{}"), "one of file, task"),
        (changed("{file: samples.jsonl}", "{task: other, length: 100, samples: 1}"), "data.task"),
        (
            changed("{file: samples.jsonl}", "{task: [vt, vt], length: 9, samples: 1}"),
            "each task is expected",
        ),
        (
            changed("{file: samples.jsonl}", "{file: a, task: vt}"),
            "one of file, task",
        ),
        (
            changed("samples.jsonl", f"a, columns: {COLUMNS}"),
            "at most 16 val",
        ),
        (changed("file: samples.jsonl", "task: vt, length: 63, samples: 1"), "at data.length"),
        (changed("file: samples.jsonl", f"task: vt, length: {MANY}, samples: 1"), "at most 16 val"),
        (FILE + "tolerance: -1", "wrong at tolerance"),
        (FILE + "tolerance: 2.55", "in steps of 0.1"),
        ("x" * 200_000, "the limit is"),
        ("!!python/object/apply:os.system [ls]", "YAML tag"),
    ],
)
def test_what_is_wrong_is_one_sentence(text, sentence):
    with pytest.raises(ConfigError) as refused:
        read_study(text)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@given(
    name=st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=40),
    budgets=st.sets(st.integers(1, 100), min_size=1, max_size=5),
    tolerance=st.integers(0, 1000).map(lambda steps: steps / 10),
    tokens=st.integers(1, 1024),
    length=st.sampled_from([64, 512, [64, 1_000_000]]),
)
def test_what_is_written_is_read_back(name, budgets, tolerance, tokens, length):
    study = RunRequest(
        name=name,
        data={"task": "vt", "length": length, "samples": 3, "seed": 0},
        variants=("snapkv", "adakv+critical:alpha=0.5"),
        budgets=tuple(f"{each}%" for each in budgets),
        max_new_tokens=tokens,
        tolerance=tolerance,
    )
    assert read_study(write_study(study)) == study


@given(text=st.text(max_size=300))
def test_no_text_is_more_than_refused(text):
    for read in (read_study, read_samples):
        with suppress(ConfigError):
            read(text)


LINE = {"id": "a", "context": "Long text.", "question": "Why?", "answers": ["because", "so"]}


def lines(*rows: dict[str, object]) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def test_samples_are_read_with_their_own_metric_and_id():
    first, second = read_samples(lines(LINE, LINE | {"id": None, "metric": "token_f1"}))
    assert (first.id, first.answers, first.metric) == ("a", ("because", "so"), "")
    assert (second.id, second.metric) == ("line 2", "token_f1")
    assert read_samples(lines(asdict(first), asdict(second))) == (first, second)


def test_columns_and_csv():
    text = "passage,ask,gold\nLong text.,Why?,because|so\n"
    columns = {"context": "passage", "question": "ask", "answers": "gold"}
    (sample,) = read_samples(text, "mine.csv", columns)
    assert (sample.context, sample.question) == ("Long text.", "Why?")
    assert sample.answers == ("because", "so")
    (sample,) = read_samples(lines(LINE | {"answers": "a|b"}))
    assert sample.answers == ("a|b",)  # a bar parts answers in CSV alone


def test_longbench_as_published():
    row = {
        "input": "Which type?",
        "context": "Some text.",
        "answers": ["Food"],
        "length": 3,
        "dataset": "trec",
        "language": "en",
        "all_classes": ["Food", "City"],
        "_id": "77",
    }
    (sample,) = read_samples(lines(row))
    assert (sample.id, sample.question, sample.metric) == ("77", "Which type?", "classification")
    assert sample.choices == ("Food", "City")
    with pytest.raises(ConfigError, match="Chinese"):
        read_samples(lines(row | {"dataset": "dureader"}))
    more = {"answer_prefix": "Type:", "task": "trec", "max_new_tokens": 84}
    of_kvpress = {**row, "question": row.pop("input"), **more}
    (again,) = read_samples(lines(of_kvpress))
    assert again == replace(sample, answer_prefix="Type:", max_new_tokens=84)
    assert score("Food\nCity", again, "string_match") == 1  # LongBench judges one line of trec


def test_ruler_as_kvpress_publishes_it(tmp_path):
    row = {
        "context": "One of the magic numbers is: 71.\n",
        "question": "What are all the special magic numbers? ",
        "answer_prefix": " The special magic numbers are",
        "answer": ["71", "92"],
        "task": "niah_multivalue",
        "max_new_tokens": 128,
    }
    first, second = read_samples(lines(row, row | {"task": "qa_1"}))
    assert (first.context, first.question) == (row["context"], row["question"])
    assert (first.answer_prefix, first.answers) == (row["answer_prefix"], ("71", "92"))
    assert (first.metric, second.metric) == ("string_match", "string_match_part")
    asked = first.request(read_study(FILE))
    assert (asked.answer_prefix, asked.max_new_tokens) == (row["answer_prefix"], 128)
    parquet = pytest.importorskip("pyarrow.parquet", exc_type=ImportError)
    arrow = pytest.importorskip("pyarrow")
    parquet.write_table(arrow.Table.from_pylist([row]), tmp_path / "ruler.parquet")
    (again,) = read_samples(read_file(tmp_path / "ruler.parquet"))
    assert again == first


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no samples"),
        ("{", "Line 1 is no JSON object"),
        ("[1]", "Line 1 is no JSON object"),
        (lines(LINE, LINE), "lines 1 and 2 have the same id 'a'"),
        (lines(LINE | {"context": " "}), "wrong at context: text"),
        (lines(LINE | {"answers": []}), "answers is empty"),
        (lines(LINE | {"answers": {}}), "text is expected"),
        (lines(LINE | {"metric": "best"}), "one of"),
        (lines(LINE | {"question": ["x"]}), "text is expected"),
        (lines(LINE | {"id": "a\x00b"}), "control characters"),
    ],
)
def test_wrong_data_is_one_sentence_with_its_line(text, sentence):
    with pytest.raises(ConfigError, match=sentence) as refused:
        read_samples(text)
    assert "\n" not in str(refused.value)


def test_the_lines_together_have_a_bound_that_each_of_them_stays_below(monkeypatch):
    monkeypatch.setattr("ckv_core.experiment.data.MAX_VALUES", 2_000)
    wide = [LINE | {"id": f"{at}", "unread": [1] * 180} for at in range(11)]
    assert len(read_samples(lines(*wide[:10]))) == 10
    with pytest.raises(ConfigError, match="Line 11: the lines hold over 2,000 values"):
        read_samples(lines(*wide))
    with pytest.raises(ConfigError, match="Line 2: The JSON has over 131,072 values"):
        read_samples(lines(LINE, LINE | {"unread": [1] * 132_000}))


def test_as_many_samples_as_a_file_may_have_may_each_be_full():
    texts = {name: [f"{at}" for at in range(12)] for name in ("evidence", "protect")}
    texts |= {"answers": ["a"] * 64, "choices": [f"{at}" for at in range(256)]}
    others = {"metric": "token_f1", "source": "s", "answer_prefix": "p", "max_new_tokens": 9}
    full = LINE | texts | others | {"tags": {f"{at}": "t" for at in range(16)}}
    (sample,) = read_samples(lines(full))
    assert full.keys() == {each.name for each in fields(sample)}
    for name, value in texts.items():
        assert getattr(sample, name) == (*value,)
        with pytest.raises(ConfigError, match=f"wrong at {name}"):
            read_samples(lines(full | {name: [*value, "x"]}))
    assert LINE_BOUNDS.check(lines(full).encode()) * MAX_SAMPLES <= MAX_VALUES


def words(context: str, question: str) -> int:
    return len(f"{context} {question}".split())


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_the_same_again_and_as_long_as_asked(task):
    data = {"task": task, "length": 700, "samples": 6, "seed": 3}
    samples = make_samples(data, words)
    assert len({sample.id for sample in samples}) == 6
    assert make_samples(data, words) == samples
    assert make_samples(data | {"samples": 4}, words) == samples[:4]
    assert make_samples(data | {"seed": 4}, words)[0].context != samples[0].context
    for sample in samples:
        assert 700 * 0.9 <= words(sample.context, sample.question) <= 700
        assert all(passage in sample.context for passage in (*sample.evidence, *sample.protect))
        if sample.metric != "constraints":
            assert all(answer in sample.context for answer in sample.answers)
            assert not any(answer in sample.question for answer in sample.answers)


def test_a_task_of_no_such_length_is_refused():
    with pytest.raises(ConfigError, match="as short as 5 tokens"):
        make_samples({"task": "vt", "length": 5, "samples": 1, "seed": 0}, words)


FUNCTION_WORDS = "the a an of in on at to is was and what which does do who kind"


def stems(text: str) -> set[str]:
    """Of the content words: the first letters, so that another ending is the same word."""
    return {
        word[:4]
        for word in re.findall(r"[a-z]+", text.lower())
        if word not in FUNCTION_WORDS.split()
    }


def test_a_paraphrased_question_shares_no_content_word_with_any_sentence():
    asked = [question.format(who="") for _, question, _ in RELATIONS]
    in_questions = stems(" ".join([*asked, *ROLES.values()]))
    told = [sentence.format(who="", value=values) for sentence, _, values in RELATIONS]
    assert not stems(" ".join([*told, *ROLES])) & in_questions
    data = {"task": [name for name in TASKS if name.startswith("para_")], "length": 400}
    samples = make_samples(data | {"samples": 10, "seed": 1}, words)
    for sample in samples:
        for answer, sentence in zip(sample.answers, sample.evidence, strict=False):
            assert answer in sentence
            assert not stems(sentence) & stems(sample.question)
            assert sample.context.count(sentence) == 1
    assert len({sample.question for sample in samples}) > 15


def test_hops_need_both_sentences_and_distractors_have_other_answers():
    (hops, *_) = make_samples({"task": "para_hops", "length": 400, "samples": 2, "seed": 1}, words)
    fact, neighbour = hops.evidence
    assert set(re.findall(r"[A-Z]\w+ [A-Z]\w+", neighbour)) <= {
        *re.findall(r"[A-Z]\w+ [A-Z]\w+", hops.question)
    }
    assert fact.split()[1] in neighbour
    (alike, *_) = make_samples(
        {"task": "para_alike", "length": 400, "samples": 2, "seed": 1}, words
    )
    before, _, _ = alike.evidence[0].partition(alike.answers[0])
    tail = " ".join(before.split()[2:])
    others = re.findall(f"The \\w+ {tail} (\\w+)", alike.context)
    assert len({*others}) == len(others) == 4


def test_several_tasks_at_several_lengths_are_made_together():
    data = {"task": ["vt", "system_protected"], "length": [200, 300], "samples": 2, "seed": 0}
    samples = make_samples(data, words)
    assert [sample.tags["task"] for sample in samples] == ["vt"] * 4 + ["system_protected"] * 4
    assert samples[-1].evidence == samples[-1].protect != ()
    twin = make_samples(data | {"task": "system_prompt"}, words)[-1]
    same = ("context", "question", "answers", "source")
    assert all(getattr(twin, name) == getattr(samples[-1], name) for name in same)
    assert not twin.protect


def test_turns_of_one_text_have_one_source():
    samples = make_samples({"task": "multi_turn", "length": 300, "samples": 8, "seed": 0}, words)
    assert len({sample.context for sample in samples}) == 2
    assert len({sample.source for sample in samples}) == 2
    assert len({sample.question for sample in samples}) == 8


# --- what docs/how-to/your_data.md says

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "how-to" / "your_data.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def test_the_examples_are_read():
    assert read_study(block("yaml")).name == "needles"
    (sample,) = read_samples(block("json"))
    assert sample.metric == json.loads(block("json"))["metric"]


def test_the_report_of_evidence_is_a_study_of_known_tasks():
    study = read_study((ROOT / "examples" / "evidence.yaml").read_text(encoding="utf-8"))
    assert len(study.points()) == 13
    assert {"para_single", "instructions", "multi_turn"} <= {*study.data["task"]} <= {*TASKS}


def test_keys_metrics_and_tasks_are_all_told():
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert rows == {*STUDY_KEYS} | METRICS.keys()
    assert all(f"`{task}`" in PAGE for task in TASKS)


def test_the_number_of_samples_is_that_of_the_code():
    assert f"5 points {fewest_sources(0.05, 1)} samples confirm one" in PAGE
    assert f"{fewest_sources(0.05, 12)} the first of twelve" in PAGE
    tutorial = (ROOT / "docs" / "tutorials" / "choose_a_method.md").read_text(encoding="utf-8")
    for points in (5, 10, 20):
        one, three = (fewest_sources(points / 100, methods) for methods in (1, 3))
        assert f"| {points} points | {one} | {three} |" in tutorial
