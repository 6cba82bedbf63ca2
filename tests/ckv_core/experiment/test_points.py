"""Laws of the one table over several runs: a prompt is one sample, what is the same counts once."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from ckv_core.errors import ConfigError
from ckv_core.experiment.points import Row
from ckv_core.experiment.points_table import points_json, points_table
from ckv_core.experiment.runs import together
from ckv_core.experiment.stats import (
    MIN_PROMPTS,
    difference_interval,
    interval_note,
)
from ckv_core.records.chain import COVERED
from ckv_core.records.events import RunResult
from ckv_core.records.records import RoundingFloor, VariantResult
from tests.factories.runs import MODEL, PROMPT, array, measured, on_prompt, variant

SPEC = "snapkv+critical:budget=64"


def rows_of(results: list[RunResult]) -> list[Row]:
    return list(together(results).rows)


# --- which prompts and variants are the same ------------------------------------------------


def point(spec: str, final: float = 1, **params: object) -> VariantResult:
    """A variant whose final hidden L1 is this, with other params than its SPEC resolves to."""
    found = variant(spec, measured(array([1, 1, 1, 1]), final, 0))
    return replace(found, params={**found.params, **params})


def run(prompt: int, *variants: VariantResult, **changed: object) -> RunResult:
    """On a prompt of its own, with the full cache as runs have it."""
    return on_prompt(prompt, variant("full"), *variants, **changed)


def finals(results: list[RunResult]) -> dict[str, tuple[float, int]]:
    """Mean final hidden L1 and n by SPEC."""
    found = {row.spec: row.mean("final") for row in rows_of(results)}
    return {spec: (mean.mean, mean.n) for spec, mean in found.items() if mean}


def test_different_alphas_under_one_spec_are_not_averaged():
    results = [
        run(1, point(SPEC, 10)),
        run(2, point(SPEC, 20)),
        run(3, point(SPEC, 90, alpha=0.5)),
    ]
    assert finals(results) == {f"{SPEC},alpha=0.25": (15, 2), f"{SPEC},alpha=0.5": (90, 1)}
    (fewer, _) = together(results).notes
    assert fewer.startswith("2 of 2 rows were run on fewer than all 3 prompts")


def test_runs_of_one_prompt_are_one_sample_of_each_of_their_budgets():
    budgets = (32, 64, 128)
    results = [
        run(prompt, point(f"snapkv:budget={budget}", 100 * prompt + budget))
        for budget in budgets
        for prompt in (1, 2)
    ]
    assert together(results).n == 2
    (curve,) = together(results).curves
    assert [mean.n for _, mean in curve.means("final")] == [2, 2, 2]
    assert [mean.mean for _, mean in curve.means("final")] == [182, 214, 278]
    alone = together([each for each in results if each.prompt.token_ids[0] == 1])
    assert (alone.n, [row.n for row in alone.rows]) == (1, [1] * 4)


def test_the_same_variant_on_the_same_prompt_counts_once_by_its_newest_run():
    fresh = [run(prompt, point(SPEC, prompt)) for prompt in range(MIN_PROMPTS)]
    again = [run(prompt, point(f"{SPEC},alpha=0.25", 10 + prompt)) for prompt in range(MIN_PROMPTS)]
    assert list(finals(fresh + again).values()) == list(finals(again).values())
    for count, words in ((1, "1 result is left out: "), (2, "2 results are left out: ")):
        assert together(fresh + again[:count]).notes[0].startswith(words)


@pytest.mark.parametrize(
    "changed", [{"compressed_tokens": 4}, {"token_ids": PROMPT.token_ids[::-1]}]
)
def test_another_split_or_text_is_another_prompt(changed):
    one, other = run(1, point(SPEC, 1)), run(1, point(SPEC, 3))
    other.prompt = replace(other.prompt, **changed)
    assert together([one, other]).n == 2


def test_each_scenario_has_rows_of_its_own():
    results = [
        run(at, point(SPEC, 10 * (scenario == "regular")), scenario=scenario)
        for at in (1, 2)
        for scenario in ("regular", "context-only")
    ]
    assert finals(results) == {
        f"{SPEC},scenario=regular": (10, 2),
        f"{SPEC},scenario=context-only": (0, 2),
    }
    with pytest.raises(ConfigError, match="in the same scenario"):
        together(results[:2])
    mixed, fewer, _ = together(results).notes
    assert "mix the scenarios" in mixed
    assert "fewer than all 4 prompts" in fewer


def test_runs_on_other_weights_or_in_another_type_are_refused():
    one, other = run(1, point(SPEC)), run(2, point(SPEC))
    other.model = replace(MODEL, name="b", sha256="1" * 64)
    with pytest.raises(ConfigError, match=r"2 different models \(b, m\)"):
        together([one, other])
    one.model = replace(MODEL, sha256="1" * 64)
    assert together([one, other]).n == 2  # the same weights under two names
    other.model = replace(one.model, dtype="bfloat16")
    with pytest.raises(ConfigError, match="computed in bfloat16 and float32"):
        together([one, other])


def test_prompts_that_share_no_variant_are_refused_and_one_prompt_is_not():
    one, other = run(1, point(SPEC)), run(2, point("snapkv:budget=64"))
    with pytest.raises(ConfigError, match="no method in common"):
        together([one, other])
    with pytest.raises(ConfigError, match="nothing to average"):
        together([])
    other.prompt = one.prompt
    assert together([one, other]).n == 1
    assert together([run(1), run(2)]).n == 2  # the full cache alone has nothing to share


# --- heads, bounds and curves -----------------------------------------------------------------


def heads_of(heads: list[float], base: list[float], **arrays: list[float]) -> RunResult:
    """One prompt: a variant with one evictable layer of two heads and one that is not."""
    missing = [np.nan, np.nan]
    analysis = {name: array(values, missing) for name, values in arrays.items()}
    moved = measured(array(heads, missing), [1.0, 2.0], 0.5, array(base, missing))
    return RunResult(variants=[variant("snapkv+critical", moved, analysis=analysis)])


def test_means_obey_the_chain_as_they_are_of_covered_heads_alone():
    good = {"theta": [2, 3], "theta_hat": [3, 1e9], "theta_relaxed": [4, 0], "value_mass": [5, 5]}
    runs = [
        heads_of([1 + at, 9], [2, 2], sigma_stage1=[0.6, 0.5], **good | {"theta": [2 + at, 3]})
        for at in (0, 0.5)
    ]
    none = heads_of([7, 7], [2, 2], sigma_stage1=[0.5, 0.1], **good)
    (found,) = rows_of([*runs, none])
    assert [found.mean(key).mean for key in COVERED] == [1.25, 2.25, 3, 4]
    assert {found.mean(key).n for key in COVERED} == {2}
    assert found.mean("sigma_over_half").mean == pytest.approx(1 / 3)
    (found,) = rows_of([none])
    assert not any(found.mean(key) for key in COVERED)


def test_a_prompt_whose_metric_is_nan_counts_as_one_where_it_is_not_known():
    runs = [heads_of([at, at], [2, 2]) for at in range(1, 12)]
    known = runs[0].variants[0].perturbation
    broken = replace(known, kl=float("nan"), head_l1=known.head_l1 * np.float32(np.nan))
    runs[0].variants[0] = replace(runs[0].variants[0], perturbation=broken)
    (found,) = rows_of(runs)
    kl, head = found.mean("kl"), found.mean("head")
    assert (kl.mean, kl.low, kl.n) == (0.5, None, 10)  # all are equal
    assert 2 < head.low < head.mean == 6.5


@pytest.mark.parametrize("spec", ["full", "own:label=a", "nothing:budget=32", "snapkv:budget=0"])
def test_what_requests_no_budget_is_in_no_curve(spec):
    bare = replace(point("snapkv"), spec=spec, method=spec.partition(":")[0], params={})
    assert together([on_prompt(at, bare) for at in range(2)]).curves == []


# --- pairs --------------------------------------------------------------------------------------


def prompt(number: int, kl: tuple[float, float], found: tuple[bool, bool, bool]) -> RunResult:
    """One prompt: KL of SnapKV and of CriticalKV; who gives the answer, the full cache first."""
    heads = array([1, 2, 3, 4])
    return on_prompt(
        number,
        variant("full", answer_found=found[0], stopped="eos"),
        variant("snapkv", measured(heads, 1, kl[0]), answer_found=found[1], stopped="eos"),
        variant("snapkv+critical", measured(heads, 1, kl[1]), answer_found=found[2], stopped="eos"),
    )


def answering(count: int) -> list[RunResult]:
    """KL differs by 100 between prompts and by about 1 within one; CriticalKV loses answers."""
    gains = np.random.default_rng(2).normal(1, 0.2, count).tolist()
    return [
        prompt(at, (100 * at + 5 + gains[at], 100 * at + 5), (True, at % 2 == 0, at == 1))
        for at in range(count)
    ]


def test_answers_are_compared_by_the_prompts_that_changed():
    base, plain, critical = together(answering(12)).pairs
    answer = base.differences["answer"]
    # SnapKV has prompts 0, 2, .. 10, CriticalKV prompt 1: six lost, one gained; 2 (1 + 7) / 2^7.
    assert (answer.lower, answer.higher, answer.p) == (6, 1, pytest.approx(0.125))
    assert answer.mean == difference_interval([-1, 1, *[-1, 0] * 5])
    assert [pair.other.spec for pair in (plain, critical)] == ["full", "full"]
    assert set(critical.differences) == {"answer"}  # the full cache moves nothing by definition
    assert critical.differences["answer"].p == pytest.approx(2 / 2**11)


def test_a_difference_stands_in_the_column_of_what_it_is_against():
    points = together(answering(12))
    columns = {each.key: each for each in points_table(points).columns}
    (row,) = (each for each in points.rows if each.spec == "snapkv+critical")
    base, _, full = points.pairs
    for kind, pair in (("base", base), ("full", full)):
        assert columns[f"answer_{kind}"].cell(row).value == pair.differences["answer"].mean.mean
    assert columns["kl_base"].cell(row).value == base.differences["kl"].mean.mean
    assert "kl_full" not in columns  # the full cache moves nothing by definition


def test_a_cut_answer_is_in_no_pair():
    several = answering(3)
    cut = several[0].variants[2]
    several[0].variants[2] = replace(cut, stopped="length")
    base, *_ = together(several).pairs
    assert (base.differences["answer"].mean.n, base.differences["answer"].lower) == (2, 1)


def test_a_difference_below_the_rounding_floor_is_neither_lower_nor_higher():
    several = answering(12)  # KL differs by about 1
    for at, run in enumerate(several):
        kl = (0.01, 50.0)[at % 3 == 0]
        run.floor = RoundingFloor(layer_hidden_l1=np.zeros(2, np.float32), kl=kl)
    base, *_ = together(several).pairs
    kl, final = base.differences["kl"], base.differences["final"]
    assert (kl.lower, kl.higher, kl.level) == (8, 0, 4)
    assert kl.level_note == ", below the rounding floor on 4"
    assert (final.lower, final.higher, final.level) == (0, 0, 12)  # they are equal
    assert final.level_note == ", below the rounding floor"
    assert base.differences["answer"].level == base.differences["head"].level == 0


def test_without_the_base_there_is_no_pair_with_one():
    alone = [on_prompt(at, *run.variants[2:]) for at, run in enumerate(answering(2))]
    assert together(alone).pairs == []


# --- the file -----------------------------------------------------------------------------------


PAGE = (Path(__file__).resolve().parents[3] / "docs/reference/result_json.md").read_text(
    encoding="utf-8"
)


def documented(text: str) -> set[str]:
    """Members in the first column of tables."""
    told: set[str] = set()
    for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE):
        first, *others = re.findall(r"`([\w.]+)`", row)
        told |= {first, *(first.rpartition(".")[0] + each for each in others)}
    return told


def test_every_mean_and_difference_is_in_the_file_and_documented():
    results = answering(10)
    points = together(results)
    found = json.loads(json.dumps(points_json(points), allow_nan=False))
    assert (found["model"], found["n"], found["notes"][0]) == ("m", 10, interval_note(10))
    for each, row in zip(found["variants"], points.rows, strict=True):
        assert (each["spec"], each["label"]) == (row.spec, row.label)
    base = found["pairs"][0]
    assert (base["variant"], base["other"]) == (2, 1)
    kl = points.pairs[0].differences["kl"]
    assert base["metrics"]["kl"].items() >= (asdict(kl.mean) | {"lower": 10, "p": None}).items()
    keys = set(found)
    for name in ("variants", "pairs"):
        keys |= {f"{name}.{key}" for key in found[name][0]}
    section = PAGE.partition("## Means over several prompts")[2].partition("\n## ")[0]
    assert documented(section) == keys
