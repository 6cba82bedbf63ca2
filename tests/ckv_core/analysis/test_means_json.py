"""The file of means holds what `analyse` averages, and its page describes every member."""

import json
import re
from pathlib import Path

import pytest

from ckv_core import cli
from ckv_core.analysis.aggregate import aggregate, budget_curves
from ckv_core.analysis.intervals import interval_note
from ckv_core.analysis.means_json import means_json
from ckv_core.cli import running
from ckv_core.results.events import RunResult
from tests.ckv_core.analysis.test_ablation_means import ablation_steps_of
from tests.ckv_core.analysis.test_aggregate import FINALS, runs
from tests.ckv_core.analysis.test_intervals import run
from tests.factories.runs import on_prompt

ROOT = Path(__file__).resolve().parents[3]


def written(results: list[RunResult]) -> dict:
    """Through real JSON, where NaN would fail."""
    return json.loads(json.dumps(means_json(results), allow_nan=False))


def test_every_mean_stands_with_its_interval_and_n():
    results = runs(FINALS)
    found, members = written(results), aggregate(results)
    assert (found["model"], found["n"], found["note"]) == ("m", 10, interval_note(10))
    assert [each["spec"] for each in found["variants"]] == list(FINALS)
    for each, member in zip(found["variants"], members, strict=True):
        assert each["label"] == member.label
        assert each["figures"].keys() == set(member.figures)
        for key, value in each["figures"].items():
            mean = member.figures[key]
            assert value == {"mean": mean.mean, "low": mean.low, "high": mean.high, "n": mean.n}
        assert (each["violations"], each["checked"]) == (member.violations, member.checked)
    assert found["variants"][1]["figures"]["final"]["mean"] == 14.5


def test_curves_name_the_variants_at_their_budgets():
    results = runs(FINALS)
    found = written(results)
    specs = list(FINALS)
    for curve, asked in zip(found["curves"], budget_curves(aggregate(results)), strict=True):
        assert (curve["spec"], curve["alpha"], curve["unit"]) == (
            asked.spec,
            asked.alpha,
            asked.unit,
        )
        assert curve["budgets"] == [budget.amount for budget, _ in asked.points]
        assert [specs[at] for at in curve["variants"]] == [each.spec for _, each in asked.points]
    assert found["curves"][0]["variants"] == [2, 1]


def test_heads_won_are_those_of_the_means():
    (found,) = written([run([1, 9], [2, 8]), run([4, 5], [2, 8])])["variants"]
    wins = found["head_wins"]
    assert (wins["count"], wins["heads"], wins["share"], wins["n"]) == (1, 2, 0.5, 2)
    assert (wins["own"], wins["base"]) == ([[2.5, 7], None], [[2, 8], None])


def test_pairs_name_their_variants_and_hold_the_differences():
    finals = {"full": None, "snapkv:budget=32": 30.0, "snapkv+critical:budget=32": 20.0}
    (pair,) = written(runs(finals))["pairs"]
    assert (pair["variant"], pair["other"]) == (2, 1)
    assert pair["figures"]["final"] == {
        "mean": -10,
        "low": -10,
        "high": -10,
        "n": 10,
        "lower": 10,
        "higher": 0,
        "level": 0,
        "p": None,
    }


def test_every_member_is_documented_and_nothing_else_is():
    found = written(runs(FINALS | {"snapkv+critical:budget=64": 5.0}))
    keys = set(found)
    keys |= {f"variants.{key}" for key in found["variants"][0]}
    keys |= {f"curves.{key}" for key in found["curves"][0]}
    keys |= {f"pairs.{key}" for key in found["pairs"][0]}
    keys |= {f"ladder.{key}" for key in written([on_prompt(0, *ablation_steps_of(4))])["ladder"][0]}
    text = (ROOT / "docs" / "result_json.md").read_text(encoding="utf-8")
    section = text.partition("## Means over several prompts")[2].partition("\n## ")[0]
    told: set[str] = set()
    for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE):
        first, *others = re.findall(r"`([\w.]+)`", row)
        told |= {first, *(first.rpartition(".")[0] + each for each in others)}
    assert told == keys


def test_the_command_writes_it_beside_the_tables(monkeypatch, capsys, tmp_path):
    path, context = tmp_path / "means.json", tmp_path / "context.txt"
    context.write_text("text", encoding="utf-8")
    results = runs({"full": None, "snapkv": 1.0}, prompts=2)
    made = iter(results * 2)
    monkeypatch.setattr(running, "load", lambda request: (None, 0.0))
    monkeypatch.setattr(running, "run", lambda *_: next(made))
    arguments = ["analyse", *["--context", str(context)] * 2, "--means", str(path)]
    assert cli.main(arguments) == 0
    assert "all measured quantities" in capsys.readouterr().out
    assert json.loads(path.read_text(encoding="utf-8")) == written(results)
    path.unlink()
    assert cli.main([*arguments, "--json", "-"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert path.exists()


@pytest.mark.parametrize("path", ["-", "no/such/folder/means.json"])
def test_means_need_a_file(capsys, tmp_path, path):
    context = tmp_path / "context.txt"
    context.write_text("text", encoding="utf-8")
    assert cli.main(["analyse", "--context", str(context), "--means", path]) == 2
    assert capsys.readouterr().err.startswith("error: --means ")
