"""The file of means holds what `analyse` averages, and its page describes every member."""

import json
from dataclasses import asdict

import pytest

from ckv_core import cli
from ckv_core.analysis.aggregate import budget_curves, together
from ckv_core.analysis.means_json import means_json
from ckv_core.experiment.stats import MIN_PROMPTS, interval_note, mean_interval, score_interval
from ckv_core.results.events import RunResult
from tests.ckv_core.analysis.test_ablation import STEPS, first_steps
from tests.ckv_core.analysis.test_aggregate import FINALS, layers_of, run, runs_of
from tests.ckv_core.analysis.test_result_json import PAGE, documented
from tests.factories.printed import printed
from tests.factories.runs import on_prompt


def written(results: list[RunResult]) -> dict:
    """Through real JSON, where NaN would fail."""
    return json.loads(json.dumps(means_json(results), allow_nan=False))


def test_every_mean_stands_with_its_interval_and_n():
    results = runs_of(FINALS)
    found, members = written(results), together(results).members
    assert (found["model"], found["n"], found["notes"][0]) == ("m", 10, interval_note(10))
    assert [each["spec"] for each in found["variants"]] == list(FINALS)
    for each, member in zip(found["variants"], members, strict=True):
        assert each["label"] == member.label
        assert each["figures"].keys() == set(member.figures)
        for key, value in each["figures"].items():
            mean = member.figures[key]
            assert value == {"mean": mean.mean, "low": mean.low, "high": mean.high, "n": mean.n}
        assert (each["violations"], each["checked"]) == (member.violations, member.checked)
    assert found["variants"][1]["figures"]["final"]["mean"] == 14.5


def test_what_too_few_prompts_have_has_no_interval_and_the_file_says_why():
    rare, often = "snapkv:budget=32", "snapkv:budget=64"
    results = runs_of({often: 1.0, rare: 2.0})
    results[0].variants.pop()
    found = written(results)
    full, few = found["variants"]
    assert (found["n"], full["n"], few["n"]) == (10, 10, 9)
    assert full["figures"]["final"]["low"] is not None
    assert (few["figures"]["final"]["low"], few["figures"]["final"]["n"]) == (None, 9)
    fewer, few, *_ = found["notes"]
    assert few.startswith("An interval of L1, KL or times needs at least 10 prompts")
    assert fewer == (
        f"1 of 2 variants were run on fewer than all 10 prompts ({rare}); only figures of the same "
        "prompts compare."
    )
    assert "4 prompts: an interval of L1" in " ".join(written(results[:4])["notes"])


def test_curves_name_the_variants_at_their_budgets():
    results = runs_of(FINALS)
    found = written(results)
    specs = list(FINALS)
    for curve, asked in zip(found["curves"], budget_curves(together(results).members), strict=True):
        told = (curve["spec"], curve["alpha"], curve["unit"])
        assert told == (asked.spec, asked.alpha, asked.unit)
        assert curve["budgets"] == [budget.amount for budget, _ in asked.points]
        assert [specs[at] for at in curve["variants"]] == [each.spec for _, each in asked.points]
    assert found["curves"][0]["variants"] == [2, 1]


def test_heads_won_are_those_of_the_means():
    (found,) = written([run([1, 9], [2, 8]), run([4, 5], [2, 8])])["variants"]
    own, base = [[2.5, 7], None], [[2, 8], None]
    wins = {"count": 1, "heads": 2, "share": 0.5, "n": 2, "own": own, "base": base}
    assert found["head_wins"] == wins


def test_layers_are_arrays():
    full, plain, critical = written(
        [layers_of(at, plain=[5 + at, 9], critical=[4, 7]) for at in range(2)]
    )["variants"]
    none = [None, None]
    assert (full["layer_hidden_l1"], full["layer_reduction"]) == (None, None)
    assert plain["layer_hidden_l1"] == {"mean": [5.5, 9], "low": none, "high": none, "n": 2}
    assert plain["layer_reduction"] is None
    assert critical["layer_reduction"]["mean"] == [1.5, 2]
    many = [layers_of(at, plain=[5 + at, 9]) for at in range(MIN_PROMPTS)]
    layers = written(many)["variants"][1]["layer_hidden_l1"]
    alone = mean_interval([5.0 + at for at in range(MIN_PROMPTS)])
    assert (layers["low"], layers["high"]) == ([alone.low, None], [alone.high, None])


def test_steps_of_the_ablation_stand_by_their_base():
    results = [on_prompt(at, *first_steps(4, at)) for at in range(2)]
    base, second, *_ = written(results)["ablation"]
    assert base["better_heads"] is None
    step = STEPS[1]
    told = {"spec": step.spec, "label": step.label, "change": step.change, "n": 2}
    assert second.items() >= told.items()
    assert second["better_heads"] == asdict(score_interval([0.25, 0.25]))
    assert second["final_hidden_l1"]["mean"] == 8.5
    assert written([on_prompt(0, *first_steps(3))])["ablation"] == []


def test_pairs_name_their_variants_and_hold_the_differences():
    finals = {"full": None, "snapkv:budget=32": 30.0, "snapkv+critical:budget=32": 20.0}
    (pair,) = written(runs_of(finals))["pairs"]
    assert (pair["variant"], pair["other"]) == (2, 1)
    interval = {"mean": -10, "low": None, "high": None, "n": 10}
    counts = {"lower": 10, "higher": 0, "level": 0, "p": None}
    assert pair["figures"]["final"] == interval | counts


def test_every_member_is_documented_and_nothing_else_is():
    found = written(runs_of(FINALS | {"snapkv+critical:budget=64": 5.0}))
    found["ablation"] = written([on_prompt(0, *first_steps(4))])["ablation"]
    keys = set(found)
    for name in ("variants", "curves", "pairs", "ablation"):
        keys |= {f"{name}.{key}" for key in found[name][0]}
    section = PAGE.partition("## Means over several prompts")[2].partition("\n## ")[0]
    assert documented(section) == keys


def test_the_command_writes_it_beside_the_tables(monkeypatch, capsys, tmp_path):
    path, context = tmp_path / "means.json", tmp_path / "context.txt"
    context.write_text("text", encoding="utf-8")
    results = runs_of({"full": None, "snapkv": 1.0}, prompts=2)
    arguments = ["analyse", *["--context", str(context)] * 2, "--means", str(path)]
    assert "further figures" in printed(monkeypatch, capsys, arguments, *results)
    assert json.loads(path.read_text(encoding="utf-8")) == written(results)
    path.unlink()
    out = printed(monkeypatch, capsys, [*arguments, "--json", "-"], *results)
    assert len(out.splitlines()) == 2
    assert path.exists()


@pytest.mark.parametrize("path", ["-", "no/such/folder/means.json"])
def test_means_need_a_file(capsys, tmp_path, path):
    context = tmp_path / "context.txt"
    context.write_text("text", encoding="utf-8")
    assert cli.main(["analyse", "--context", str(context), "--means", path]) == 2
    assert capsys.readouterr().err.startswith("error: --means ")
