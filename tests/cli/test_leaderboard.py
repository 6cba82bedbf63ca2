"""kvpress's result folders come in and go out bit for bit; runs of here are written as such."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import yaml

from ckv_core.errors import ConfigError
from ckv_core.experiment.data import read_samples
from ckv_core.experiment.export import read_export
from ckv_core.experiment.leaderboard import _metrics, read_leaderboard, write_leaderboard
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.study import Sample
from ckv_core.records.run_request import RunRequest
from cli.main import main
from tests.factories.scored import scored

ROWS = [
    {
        "context": f"Text {at}",
        "question": 'What are "all" the, numbers?\nSay them. ',
        "answer_prefix": " The numbers are",
        "answer": np.array(answers, dtype=object),
        "task": task,
        "max_new_tokens": 128,
    }
    for at, (task, answers) in enumerate(
        [
            ("niah_multivalue", ["71", "it's", 'a "b"']),
            ("cwe", [f"word{n:02}é" for n in range(12)]),  # as long as an array breaks its line
            ("niah_multivalue", ["8"]),
            ("qa_1", ["Paris", "the city of Paris"]),
        ]
    )
]
SAID = [" 71, it's.\n", "word00é word11É", "", "\x01Pa\x02ris, of course"]


def kvpress_folder(folder, press, ratio, said, columns):
    """Written with pandas, PyYAML and json, as kvpress's evaluation does it."""
    frame = pandas.DataFrame(ROWS)
    frame["predicted_answer"] = said
    frame["compression_ratio"] = ratio
    config = {"dataset": "ruler", "data_dir": "4096", "model": "org/Model-8B", "device": None}
    config |= {"press_name": press, "compression_ratio": ratio, "fraction": 1.0}
    config |= {"query_aware": False, "model_kwargs": {}, "press_init_command": "P(a=1)", "seed": 42}
    metrics: dict[str, dict[str, float]] = {}
    for task, own in frame.groupby("task"):
        scores = []
        for text, refs in zip(own["predicted_answer"], own["answer"], strict=True):
            clean = re.sub(r"[\x00-\x1f]", "", text.strip()).strip().lower()
            hits = [float(ref.lower() in clean) for ref in refs]
            scores.append(max(hits) if task == "qa_1" else sum(hits) / len(hits))
        metrics[task] = {"string_match": round(sum(scores) / len(scores) * 100, 2)}
    name = f"ruler__4096__org--Model-8B__{press}__{ratio:.2f}"
    (folder / name).mkdir(parents=True)
    frame[columns].to_csv(folder / name / "predictions.csv", index=False)
    (folder / name / "metrics.json").write_text(json.dumps(metrics, indent=4), "utf-8")
    text = yaml.dump(config, default_flow_style=False, indent=2, sort_keys=False)
    (folder / name / "config.yaml").write_text(text, "utf-8")


@pytest.fixture
def theirs(tmp_path):
    columns = [*ROWS[0].keys() - {"context"}, "predicted_answer", "compression_ratio"]
    kvpress_folder(tmp_path / "in", "no_press", 0.0, SAID, columns)
    kvpress_folder(tmp_path / "in", "adakv_snapkv", 0.875, SAID[::-1], columns[::-1])
    return tmp_path / "in"


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_folders_of_kvpress_come_in_and_go_out_bit_for_bit(theirs, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CKV_HOME", str(tmp_path / "home"))
    assert main(["import", str(theirs)]) == 0
    assert "ruler 4096 org/Model-8B" in capsys.readouterr().out
    out = tmp_path / "out"
    export = ["export", "ruler 4096 org/Model-8B", "--kvpress-leaderboard", str(out)]
    assert main(export) == 0
    assert files(out) == files(theirs)
    assert main(export) != 0
    assert "is there already" in capsys.readouterr().err
    whole = tmp_path / "whole.json"
    assert main([*export[:2], "--data", "--json", str(whole)]) == 0
    text = whole.read_text("utf-8")
    assert read_export(text).study.data["leaderboard"]
    whole.write_bytes(text[:40].encode() + b"\xff")
    assert main(["import", str(whole)]) == 2
    assert "is not UTF-8 text (byte 40)" in capsys.readouterr().err
    forged = text.replace('"folder": "ruler__', '"folder": "../ruler__')
    with pytest.raises(ConfigError, match="wrong at data"):
        read_export(forged)


def test_a_wrong_folder_is_refused_where_it_is_wrong(theirs, tmp_path):
    leaf = next(theirs.glob("*adakv*"))
    known = (leaf / "config.yaml").read_text("utf-8")
    for old, new, sentence in (
        ("adakv_snapkv", "think", "has no counterpart"),
        ("dataset: ruler", "dataset: mine", "none of ruler, longbench"),
        ("data_dir: '4096'", "data_dir: '8192'", "import them one by one"),
        ("seed: 42", "seed: !!python/name:os.system", "YAML tag"),
    ):
        (leaf / "config.yaml").write_text(known.replace(old, new), "utf-8")
        with pytest.raises(ConfigError, match=sentence):
            read_leaderboard(theirs)
    (leaf / "config.yaml").write_text(known, "utf-8")
    table = (leaf / "predictions.csv").read_text("utf-8")
    (leaf / "predictions.csv").write_text(table.replace("Paris'", "Rome'"), "utf-8")
    with pytest.raises(ConfigError, match="has other samples"):
        read_leaderboard(theirs)
    with pytest.raises(ConfigError, match=r"nor a folder in it has a predictions\.csv"):
        read_leaderboard(tmp_path)


@pytest.mark.parametrize(
    ("dataset", "metrics"),
    [
        ("longbench", 66.67),
        ("ruler", {"a": {"string_match": 50.0}, "b": {"string_match": 100.0}}),
    ],
)
def test_scores_are_one_by_task_or_one_in_all(dataset, metrics):
    samples = [
        Sample(id=task, context="c", question="?", answers=("yes",), tags={"task": task})
        for task in "aab"
    ]
    said = [scored("a", "full", None, 1.0, text=text) for text in ("yes", "no", "yes")]
    leaf = SimpleNamespace(config={"dataset": dataset})
    pairs = list(zip(samples, said, strict=True))
    assert json.loads(_metrics(leaf, pairs, "string_match")) == metrics


def test_a_study_of_published_samples_is_written_as_folders(tmp_path):
    lines = [json.dumps(row | {"answer": list(row["answer"])}) for row in ROWS]
    samples = read_samples("\n".join(lines))
    study = RunRequest(
        name="mine",
        model="org/Model-8B",
        scenario="context-only",
        data={"file": "4096.jsonl"},
        variants=("snapkv+critical:preset=kvpress",),
        budgets=("20%",),
    )
    results = [scored(s.id, p.variant, p.budget, 1.0) for p in study.points() for s in samples]
    with pytest.raises(ConfigError, match="1 results are missing"):
        write_leaderboard(Reading(study, samples, results[1:]), tmp_path / "lost")
    written = write_leaderboard(Reading(study, samples, results), tmp_path / "out")
    ends = [path.name.rpartition("Model-8B__")[2] for path in written]
    assert ends == ["no_press__0.00", "critical_snapkv__0.80"]
    again = read_leaderboard(tmp_path / "out")
    assert again.study.points() == study.points()
    assert [s.answers for s in again.samples] == [s.answers for s in samples]
    wrong = RunRequest(name="x", data={}, variants=("snapkv",), budgets=("20%",))
    with pytest.raises(ConfigError, match="is no press of kvpress's evaluation"):
        write_leaderboard(Reading(wrong, samples, []), tmp_path / "none")
