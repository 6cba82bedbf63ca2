"""Laws of variants over several prompts: heads, bounds, layers, and curves over the budget."""

import re
from dataclasses import replace

import numpy as np
import pytest

from ckv_core.analysis.aggregate import (
    Aggregate,
    budget_curves,
    hidden_by_layer,
    reduction_by_layer,
    together,
    varied_units,
)
from ckv_core.analysis.aggregate_runs import join
from ckv_core.cli.aggregate import print_results
from ckv_core.errors import ConfigError
from ckv_core.experiment.stats import MIN_PROMPTS, mean_interval
from ckv_core.methods.parameters import ParameterValue
from ckv_core.request.variants import VariantSpec
from ckv_core.results.chain import COVERED
from ckv_core.results.events import RunResult
from ckv_core.results.records import RetainedSet, VariantResult
from tests.factories.printed import table
from tests.factories.runs import (
    array,
    bare,
    measured,
    model_info,
    on_prompt,
    prompt_info,
    variant,
)


def members_of(results: list[RunResult]) -> list[Aggregate]:
    return together(results).members


# --- heads and bounds -----------------------------------------------------------------------


def run(heads: list[float], base: list[float], **arrays: list[float]) -> RunResult:
    """One variant with one evictable layer of two heads and one that is not."""
    missing = [np.nan, np.nan]
    analysis = {name: array(values, missing) for name, values in arrays.items()}
    moved = measured(array(heads, missing), [1.0, 2.0], 0.5, array(base, missing))
    return RunResult(variants=[variant("snapkv+critical", moved, analysis=analysis)])


def test_a_head_wins_by_its_mean_over_the_prompts():
    (found,) = members_of([run([1, 9], [2, 8]), run([4, 5], [2, 8])])
    # head 0: 2.5 against 2; head 1: 7 against 8
    assert found.head_wins.wins[0].tolist() == [False, True]
    assert (found.head_wins.count, found.head_wins.heads, found.head_wins.share) == (1, 2, 0.5)
    assert found.figures["improved_heads"].mean == pytest.approx((0.5 + 0.5) / 2)
    assert found.figures["head"].mean == pytest.approx((5 + 4.5) / 2)
    lone = run([4, 5], [2, 8])
    (own,) = lone.variants
    lone.variants[0] = replace(own, perturbation=replace(own.perturbation, base_head_l1=None))
    assert members_of([run([1, 9], [2, 8]), lone])[0].head_wins is None  # its base is not known


def test_the_chain_is_checked_only_where_sigma_is_over_a_half():
    arrays = {"theta": [2, 2], "theta_hat": [3, 1], "theta_relaxed": [4, 0], "value_mass": [5, 5]}
    low = run([1, 1], [2, 2], sigma_stage1=[0.9, 0.4], sigma_oracle=[0.6, 0.5], **arrays)
    (found,) = members_of([low])
    assert found.figures["sigma_over_half"].mean == 0.5
    assert (found.violations, found.checked) == (0, 1)
    assert found.figures["tightness"].mean == 0.5
    high = run([1, 1], [2, 2], sigma_stage1=[0.9, 0.6], sigma_oracle=[0.6, 0.7], **arrays)
    (found,) = members_of([low, high])
    assert found.figures["sigma_over_half"].mean == 0.75
    assert found.figures["oracle_over_half"].mean == 0.75
    assert (found.violations, found.checked) == (1, 3)


def test_means_obey_the_chain_as_they_are_of_covered_heads_alone():
    good = {"theta": [2, 3], "theta_hat": [3, 1e9], "theta_relaxed": [4, 0], "value_mass": [5, 5]}
    runs = [
        run([1 + at, 9], [2, 2], sigma_stage1=[0.6, 0.5], **good | {"theta": [2 + at, 3]})
        for at in (0, 0.5)
    ]
    none = run([7, 7], [2, 2], sigma_stage1=[0.5, 0.1], **good)
    (found,) = members_of([*runs, none])
    chain = [found.figures[key] for key in COVERED]
    assert [each.mean for each in chain] == [1.25, 2.25, 3, 4]
    assert {each.n for each in chain} == {2}
    assert (found.checked, found.bounded) == (2, 6)
    (found,) = members_of([none])
    assert not set(COVERED) & set(found.figures)
    assert (found.checked, found.bounded) == (0, 2)


def test_a_prompt_whose_figure_is_nan_counts_as_one_where_it_is_not_known():
    runs = [run([at, at], [2, 2]) for at in range(1, 12)]
    known = runs[0].variants[0].perturbation
    broken = replace(known, kl=float("nan"), head_l1=known.head_l1 * np.float32(np.nan))
    runs[0].variants[0] = replace(runs[0].variants[0], perturbation=broken)
    (found,) = members_of(runs)
    kl, head = found.figures["kl"], found.figures["head"]
    assert (kl.mean, kl.low, kl.n) == (0.5, None, 10)  # all are equal
    assert 2 < head.low < head.mean == 6.5


def with_alpha(alpha: float | None, *, critical: bool = False) -> RunResult:
    found = run([1, 1], [2, 2], sigma_stage1=[0.9, 0.4])
    (plain,) = found.variants
    known = {} if alpha is None else {"stage1_alpha": np.array([alpha], np.float32)}
    analysis = {**plain.analysis, **known}
    found.variants[0] = replace(plain, critical=critical, analysis=analysis)
    return found


def test_runs_whose_plain_variants_took_different_alphas_say_so():
    def notes(results: list[RunResult]) -> str:
        return " ".join(together(results).notes)

    assert "differ (0.1, 1)" in notes([with_alpha(1.0), with_alpha(0.1)])
    assert "(0.25, not recorded)" in notes([with_alpha(0.25), with_alpha(None)])
    assert "alpha of stage 1 is not recorded" in notes([with_alpha(None)] * 2)
    for alike in ([with_alpha(0.1)] * 2, [with_alpha(None)], [run([1, 1], [2, 2])] * 2):
        assert "alpha" not in notes(alike)
    # The SPEC of CriticalKV names its alpha; earlier versions did not record it besides.
    assert "alpha" not in notes([with_alpha(a, critical=True) for a in (None, 0.5)])


# --- layers ---------------------------------------------------------------------------------

PLAIN = "snapkv:budget=64,window=16"
CRITICAL = "snapkv+critical:budget=64,window=16,alpha=0.5"
OTHER = "snapkv:budget=32,window=16"  # another budget, so no base


def layers_of(prompt: int, **layers: list[float]) -> RunResult:
    """Variants with these hidden L1 by layer on one prompt."""
    specs = {"plain": PLAIN, "critical": CRITICAL, "other": OTHER}
    made = [
        variant(specs[name], measured(array([1, 1, 1, 1]), values))
        for name, values in layers.items()
    ]
    return on_prompt(prompt, variant("full"), *made)


def by_spec(results: list[RunResult]):
    variants = join(results).variants
    return {each.spec: each for each in variants}, variants


def test_each_layer_has_its_own_mean_over_the_prompts_and_its_interval():
    lines = np.random.default_rng(2).uniform(1, 9, (MIN_PROMPTS, 3)).astype(np.float32)
    found, _ = by_spec([layers_of(at, plain=line.tolist()) for at, line in enumerate(lines)])
    for at, each in enumerate(hidden_by_layer(found[PLAIN])):
        alone = mean_interval(lines[:, at].tolist())
        assert (each.mean, each.n) == (pytest.approx(alone.mean), MIN_PROMPTS)
        assert (each.low, each.high) == pytest.approx((alone.low, alone.high), rel=1e-3)
    assert hidden_by_layer(found["full"]) is None


def test_a_reduction_is_base_minus_variant_of_the_same_prompts():
    results = [
        layers_of(0, plain=[5, 9], critical=[4, 7], other=[1, 1]),
        layers_of(1, critical=[100, 100], other=[1, 1]),  # without its base
        layers_of(2, other=[1, 1], plain=[3, 3]),
        layers_of(2, critical=[1, 4]),  # in another run of that prompt
    ]
    found, variants = by_spec(results)
    layers = reduction_by_layer(found[CRITICAL], variants)
    assert [(each.mean, each.low, each.n) for each in layers] == [(1.5, None, 2), (0.5, None, 2)]
    assert reduction_by_layer(found[PLAIN], variants) is None
    assert reduction_by_layer(found["full"], variants) is None
    without = [each for each in variants if each.spec != PLAIN]
    assert reduction_by_layer(found[CRITICAL], without) is None


def test_a_prompt_with_a_layer_that_is_not_known_has_no_part():
    lines = ([1, 2], [3, np.nan], [5, 6])
    found, _ = by_spec([layers_of(at, plain=line) for at, line in enumerate(lines)])
    assert [(each.mean, each.n) for each in hidden_by_layer(found[PLAIN])] == [(3, 2), (4, 2)]


# --- what `analyse` prints -------------------------------------------------------------------

QUERY_HEADS = 4
FINALS = {
    "full": None,
    "snapkv:budget=64": 10.0,
    "snapkv:budget=32": 30.0,
    "snapkv+critical:budget=32,alpha=0.5": 20.0,
    "adakv:budget=10%": 7.0,
}


def resolved(spec: str) -> dict[str, ParameterValue]:
    """As the engine records them; none of what is no SPEC."""
    try:
        return dict(VariantSpec.parse(spec).params)
    except ConfigError:
        return {}


def bounded(spec: str, final: float | None) -> VariantResult:
    """One layer of four heads whose L1 is half of theta; `final` None leaves it unmeasured."""
    theta = np.array([[1, 2, 3, 4]], np.float32)
    names = ("theta", "theta_hat", "theta_relaxed", "value_mass")
    sigmas = {"sigma_stage1": theta * 0 + np.float32(0.9), "sigma_oracle": theta / 4}
    heads = np.array([[1, 0.5, 1, 3]], np.float32)
    name = spec.partition(":")[0]
    return replace(
        bare(spec),
        label=name,
        method=name.partition("+")[0],
        critical="+" in spec,
        params=resolved(spec),
        perturbation=None if final is None else measured(heads, [final], 0.1),
        analysis=dict.fromkeys(names, theta) | sigmas,
    )


def runs_of(
    finals: dict[str, float | None], prompts: int = MIN_PROMPTS, kv_heads: int = 2
) -> list[RunResult]:
    """The same variants on several prompts, each with its own final L1."""
    kept = RetainedSet.from_mask(np.ones((1, kv_heads, 1), np.bool_))
    return [
        RunResult(
            model=model_info(1, kv_heads=kv_heads),
            prompt=prompt_info(["x"], token_ids=(at,)),
            variants=[
                replace(bounded(spec, None if final is None else final + at), retained=kept)
                for spec, final in finals.items()
            ],
        )
        for at in range(prompts)
    ]


def shown(capsys: pytest.CaptureFixture[str], found: list[RunResult]) -> str:
    print_results(found, [""] * len(found))
    return capsys.readouterr().out


def test_a_row_is_printed_per_method_and_budget_with_intervals(capsys):
    rows = table(shown(capsys, runs_of(FINALS)), "A row is a variant")

    def cell(first: int) -> str:
        found = mean_interval([first + at for at in range(MIN_PROMPTS)])
        return f"{found.mean:.4g} ({found.low:.4g} to {found.high:.4g})"

    assert {spec: (row["Budget"], row["Final hidden L1"]) for spec, row in rows.items()} == {
        "full": ("-", "-"),
        "snapkv:budget=64": ("64", cell(10)),
        "snapkv:budget=32": ("32", cell(30)),
        "snapkv+critical:budget=32,alpha=0.5": ("32", cell(20)),
        "adakv:budget=10%": ("10%", cell(7)),
    }
    few = table(shown(capsys, runs_of(FINALS, prompts=2)), "A row is a variant")
    assert few["snapkv:budget=32"]["Final hidden L1"] == "30.5"


def test_a_budget_that_is_not_written_is_the_default_one():
    found = budget_curves(members_of(runs_of({"snapkv": 1.0, "snapkv:budget=64": 2.0}, prompts=1)))
    assert [[str(budget) for budget, _ in curve.points] for curve in found] == [["64", "128"]]
    assert varied_units(found, "final") == ["tokens"]
    assert varied_units(found, "agreement") == []


@pytest.mark.parametrize("spec", ["full", "own:label=a", "nothing:budget=32", "snapkv:budget=0"])
def test_what_asks_for_no_budget_is_in_no_curve(spec):
    assert budget_curves(members_of(runs_of({spec: 1.0}))) == []


def test_the_bound_per_kv_head_stands_beside_that_of_its_query_heads(capsys):
    figures = members_of(runs_of({"snapkv": 1.0}))[0].figures
    heads, groups = (1 + 0.25 + 1 / 3 + 0.75) / 4, (1.5 / 3 + 4 / 7) / 2
    assert figures["tightness"].mean == pytest.approx(heads)  # alike in all prompts
    assert figures["group_tightness"].mean == pytest.approx(groups)
    out = shown(capsys, runs_of({"snapkv": 1.0}))
    assert re.search(r"^Sigma over 0.5 +snapkv +100.0% \(72.2% to 100.0%\)$", out, re.M)
    assert re.search(r"^Oracle sigma over 0.5 +snapkv +50.0% \(34.5% to 65.5%\)$", out, re.M)
    assert "group L1" not in shown(capsys, runs_of({"snapkv": 1.0}, kv_heads=QUERY_HEADS))
