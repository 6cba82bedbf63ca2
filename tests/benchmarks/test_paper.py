"""`make paper`: which samples it takes of a published file, and its table beside the authors'."""

import json

import pandas
import yaml

from benchmarks import paper


def test_the_samples_are_those_that_kvpress_draws(tmp_path, monkeypatch):
    file = tmp_path / "4096.jsonl"
    file.write_text("\n".join(json.dumps({"at": at}) for at in range(40)), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["paper", "--data", str(file), "--model", "org/m"])
    study, words = paper._study(paper._arguments(), tmp_path)
    lines = (tmp_path / "paper.jsonl").read_text(encoding="utf-8").splitlines()
    taken = [json.loads(line)["at"] for line in lines]
    frame = pandas.DataFrame({"at": range(40)}).sample(frac=0.1, random_state=42)
    assert taken == frame["at"].tolist()
    assert words == "4096.jsonl: 4 of 40 samples; "
    assert yaml.safe_load(yaml.safe_dump(study))["variants"] == [*paper.AUTHORS][1:]


def test_the_table_stands_beside_the_authors_figures():
    rows = [
        {"variant": v, "score": 0.5, "low": 0.4, "high": 0.6, "n": 9, "cut": 1, "failed": 0}
        for v in paper.AUTHORS
    ]
    rows[2]["score"] = None
    lines = paper._table(rows)
    assert lines[3] == "| snapkv | 50.0 | 40.0 to 60.0 | 9 | 1 | 0 | 39.0 | +11.0 |"
    assert lines[4] == "| adakv | - | - | 9 | 1 | 0 | 46.0 | - |"
