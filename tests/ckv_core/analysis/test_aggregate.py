"""What `analyse` prints of several prompts: the final layer against the budget, the bounds."""

import re
from dataclasses import replace

import numpy as np
import pytest

from ckv_core.analysis.aggregate import aggregate, budget_curves, varied_units
from ckv_core.analysis.intervals import MIN_PROMPTS, mean_interval
from ckv_core.cli.aggregate import print_results
from ckv_core.errors import ConfigError
from ckv_core.methods.parameters import ParameterValue
from ckv_core.request.variants import VariantSpec
from ckv_core.results.events import RunResult
from ckv_core.results.records import RetainedSet, VariantResult
from tests.factories.runs import bare, measured, model_info, prompt_info

QUERY_HEADS = 4


def resolved(spec: str) -> dict[str, ParameterValue]:
    """As the engine records them; none of what is no SPEC."""
    try:
        return dict(VariantSpec.parse(spec).params)
    except ConfigError:
        return {}


def variant(spec: str, final: float | None) -> VariantResult:
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


def runs(
    finals: dict[str, float | None], prompts: int = MIN_PROMPTS, kv_heads: int = 2
) -> list[RunResult]:
    """The same variants on several prompts, each with its own final L1."""
    kept = RetainedSet.from_mask(np.ones((1, kv_heads, 1), np.bool_))
    return [
        RunResult(
            model=model_info(1, kv_heads=kv_heads),
            prompt=prompt_info(["x"], token_ids=(at,)),
            variants=[
                replace(variant(spec, None if final is None else final + at), retained=kept)
                for spec, final in finals.items()
            ],
        )
        for at in range(prompts)
    ]


def printed(capsys: pytest.CaptureFixture[str], found: list[RunResult]) -> str:
    print_results(found, [""] * len(found))
    return capsys.readouterr().out


FINALS = {
    "full": None,
    "snapkv:budget=64": 10.0,
    "snapkv:budget=32": 30.0,
    "snapkv+critical:budget=32,alpha=0.5": 20.0,
    "adakv:budget=10%": 7.0,
}


def test_the_final_layer_is_printed_against_the_budget_with_intervals_and_n(capsys):
    out = printed(capsys, runs(FINALS))
    (table,) = re.findall(r"final layer against the budget, .*?\n\n", out, re.S)
    title, head, plain, critical = table.strip().splitlines()
    assert title.startswith("final layer against the budget, entries per KV head")
    assert head.split() == ["variant", "at", "32", "at", "64", "n"]
    cells = []
    for first in (30, 10):
        found = mean_interval([first + at for at in range(MIN_PROMPTS)])
        cells.append(f"{found.mean:.4g} [{found.low:.4g}, {found.high:.4g}]")
    assert re.split(r" {2,}", plain) == ["snapkv", *cells, "10"]
    assert re.split(r" {2,}", critical)[0] == "snapkv+critical:alpha=0.5"
    assert re.split(r" {2,}", critical)[2:] == ["-", "10"]
    assert "percent" not in table


def test_of_too_few_prompts_there_are_means_and_of_one_budget_no_table(capsys):
    out = printed(capsys, runs(FINALS, prompts=2))
    assert re.search(r"^snapkv +30.5 +10.5 +2$", out, re.M)
    one = {spec: final for spec, final in FINALS.items() if "budget=64" not in spec}
    assert "against the budget" not in printed(capsys, runs(one))


def test_a_budget_that_is_not_written_is_the_default_one():
    found = budget_curves(aggregate(runs({"snapkv": 1.0, "snapkv:budget=64": 2.0}, prompts=1)))
    assert [[str(budget) for budget, _ in curve.points] for curve in found] == [["64", "128"]]
    assert varied_units(found, "final") == ["tokens"]
    assert varied_units(found, "agreement") == []


@pytest.mark.parametrize("spec", ["full", "own:label=a", "nothing:budget=32", "snapkv:budget=0"])
def test_what_asks_for_no_budget_is_in_no_curve(spec):
    assert budget_curves(aggregate(runs({spec: 1.0}))) == []


def test_the_bound_per_kv_head_stands_beside_that_of_its_query_heads(capsys):
    out = printed(capsys, runs({"snapkv": 1.0}))
    (head, row) = re.findall(r"^variant .*oracle > 0.5\n.*$", out, re.M)[0].splitlines()
    cells = dict(zip(re.split(r" {2,}", head), re.split(r" {2,}", row), strict=True))
    heads, groups = (1 + 0.25 + 1 / 3 + 0.75) / 4, (1.5 / 3 + 4 / 7) / 2
    assert cells["L1 / theta"].startswith(f"{heads:.4g} [")
    assert cells["sigma > 0.5"] == "100.0% [69.2%, 100.0%]"  # of ten prompts, each all or nothing
    assert cells["oracle > 0.5"] == "50.0% [50.0%, 50.0%]"
    assert cells["group L1 / theta"].startswith(f"{groups:.4g} [")
    assert "group" not in printed(capsys, runs({"snapkv": 1.0}, kv_heads=QUERY_HEADS))
