"""Runs read together: a prompt is one sample, and what is the same counts once."""

from dataclasses import replace
from math import inf

import pytest

from ckv_core.analysis.aggregate import budget_curves, together
from ckv_core.analysis.aggregate_runs import join
from ckv_core.errors import ConfigError
from ckv_core.experiment.stats import MIN_PROMPTS, score_interval
from ckv_core.results.events import RunResult
from ckv_core.results.records import VariantResult
from tests.factories.runs import MODEL, PROMPT, array, measured, on_prompt, variant

SPEC = "snapkv+critical:budget=64"


def point(spec: str, final: float = 1, **params: object) -> VariantResult:
    """A variant whose final hidden L1 is this, with other params than its SPEC resolves to."""
    found = variant(spec, measured(array([1, 1, 1, 1]), final, 0))
    return replace(found, params={**found.params, **params})


def run(prompt: int, *variants: VariantResult, **changed: object) -> RunResult:
    """On a prompt of its own, with the full cache as runs have it."""
    return on_prompt(prompt, variant("full"), *variants, **changed)


def finals(results: list[RunResult]) -> dict[str, tuple[float, int]]:
    """Mean final hidden L1 and n by SPEC."""
    found = {m.spec: m.figures["final"] for m in together(results).members if "final" in m.figures}
    return {spec: (mean.mean, mean.n) for spec, mean in found.items()}


def test_different_alphas_under_one_spec_are_not_averaged():
    results = [
        run(1, point(SPEC, 10)),
        run(2, point(SPEC, 20)),
        run(3, point(SPEC, 90, alpha=0.5)),
    ]
    assert finals(results) == {f"{SPEC},alpha=0.25": (15, 2), f"{SPEC},alpha=0.5": (90, 1)}
    fewer, namesakes = join(results).notes
    assert fewer.startswith("2 of 2 variants were run on fewer than all 3 prompts")
    assert namesakes == (
        "The same SPEC stands for different settings in these runs, which are rows of their own: "
        f"{SPEC},alpha=0.25, {SPEC},alpha=0.5."
    )


def test_settings_that_are_not_recorded_are_said_and_not_guessed():
    bare = [replace(point(SPEC, final), params={}) for final in (10, 30)]
    results = [run(1, point(SPEC, 1)), run(2, bare[0]), run(3, bare[1])]
    assert finals(results) == {f"{SPEC},alpha=0.25": (1, 1), f"{SPEC},alpha=?": (20, 2)}
    notes = " ".join(join(results).notes)
    assert "Some runs do not record all settings of a SPEC that others do" in notes
    assert "different settings" not in notes
    assert f"Not every setting of {SPEC},alpha=? is recorded (alpha, " in notes
    on_one_prompt = " ".join(join([run(1, point(SPEC)), run(1, bare[0])]).notes)
    assert "Not every setting" not in on_one_prompt
    assert [curve.alpha for curve in budget_curves(together(results).members)] == [0.25, None]


def test_runs_of_one_prompt_are_one_sample_of_each_of_their_budgets():
    budgets = (32, 64, 128)
    results = [
        run(prompt, point(f"snapkv:budget={budget}", 100 * prompt + budget))
        for budget in budgets
        for prompt in (1, 2)
    ]
    assert join(results).n == 2
    (curve,) = budget_curves(together(results).members)
    assert [mean.n for _, mean in curve.values("final")] == [2, 2, 2]
    assert [mean.mean for _, mean in curve.values("final")] == [182, 214, 278]
    alone = join([each for each in results if each.prompt.token_ids[0] == 1])
    assert (alone.n, [each.n for each in alone.variants]) == (1, [1] * 4)


def test_the_same_variant_on_the_same_prompt_counts_once_by_its_newest_run():
    fresh = [run(prompt, point(SPEC, prompt)) for prompt in range(MIN_PROMPTS)]
    again = [run(prompt, point(f"{SPEC},alpha=0.25", 10 + prompt)) for prompt in range(MIN_PROMPTS)]
    (once,) = [m.figures["final"] for m in together(again).members if "final" in m.figures]
    (twice,) = [m.figures["final"] for m in together(fresh + again).members if "final" in m.figures]
    assert twice == once
    for count, words in ((1, "1 result is left out: "), (2, "2 results are left out: ")):
        assert join(fresh + again[:count]).notes[0].startswith(words)
    assert join(fresh + again).notes == [
        "10 results are left out: a newer run has the same variant on the same prompt, and "
        "that counts once."
    ]
    assert join(fresh).notes == []


@pytest.mark.parametrize(
    "changed", [{"compressed_tokens": 4}, {"token_ids": PROMPT.token_ids[::-1]}]
)
def test_another_split_or_text_is_another_prompt(changed):
    one, other = run(1, point(SPEC, 1)), run(1, point(SPEC, 3))
    other.prompt = replace(other.prompt, **changed)
    assert join([one, other]).n == 2


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
        join(results[:2])
    mixed, fewer = join(results).notes
    assert "mix the scenarios" in mixed
    assert "fewer than all 4 prompts" in fewer


def test_runs_on_other_weights_or_in_another_type_are_refused():
    one, other = run(1, point(SPEC)), run(2, point(SPEC))
    other.model = replace(MODEL, name="b", sha256="1" * 64)
    with pytest.raises(ConfigError, match=r"2 different models \(b, m\)"):
        join([one, other])
    one.model = replace(MODEL, sha256="1" * 64)
    assert join([one, other]).n == 2  # the same weights under two names
    other.model = replace(one.model, dtype="bfloat16")
    with pytest.raises(ConfigError, match="computed in bfloat16 and float32"):
        join([one, other])


def test_prompts_that_share_no_variant_are_refused_and_one_prompt_is_not():
    one, other = run(1, point(SPEC)), run(2, point("snapkv:budget=64"))
    with pytest.raises(ConfigError, match="no variant in common"):
        join([one, other])
    with pytest.raises(ConfigError, match="nothing to average"):
        join([])
    other.prompt = one.prompt
    assert join([one, other]).n == 1
    assert join([run(1), run(2)]).n == 2  # the full cache alone has nothing to share


def test_a_figure_that_few_prompts_have_is_of_these():
    results = [run(at, point(SPEC, at)) for at in range(MIN_PROMPTS)]
    results[0].variants[1] = replace(results[0].variants[1], agreement=0.5)
    (member,) = [each for each in together(results).members if each.spec == SPEC]
    assert member.figures["agreement"] == score_interval([0.5])
    assert member.figures["final"].high < inf
