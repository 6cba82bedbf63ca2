"""Variants are the same by what decides their outcome, not by how their SPEC was written."""

from dataclasses import replace

import pytest

from ckv_core.methods.parameters import Budget
from ckv_core.records.identity import identify, unique_specs
from ckv_core.records.records import VariantResult
from tests.factories.runs import variant

SPEC = "snapkv+critical:budget=64"


def recorded(spec: str, **params: object) -> VariantResult:
    """As the engine records it, but with these parameters."""
    found = variant(spec)
    return replace(found, params={**found.params, **params})


def shown(*variants: VariantResult) -> list[str]:
    """Of each the SPEC that tells it from the others."""
    specs = unique_specs({identify(each): each.spec for each in variants})
    return [specs[identify(each)] for each in variants]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SPEC, f"{SPEC},alpha=0.25"),
        (SPEC, "snapkv+critical:alpha=0.25,budget=64"),
        ("snapkv", "snapkv:budget=128"),
        (f"{SPEC},preset=paper", SPEC),
        (f"{SPEC},pool=none,stage2=pooled", f"{SPEC},pool=none,kernel=3"),
        ("adakv:budget=10%,safeguard=0.2", "adakv:budget=10%"),
        ("knorm:rule=pyramid,name=Mine", "knorm:rule=pyramid,beta=20"),
    ],
)
def test_what_does_the_same_is_the_same(one, other):
    assert identify(variant(one)) == identify(variant(other))


@pytest.mark.parametrize(
    "other",
    [
        "snapkv:budget=64",
        "adakv+critical:budget=64",
        "snapkv+critical_auto:budget=64",
        "snapkv+critical:budget=65",
        "snapkv+critical:budget=64MiB",
        f"{SPEC},alpha=0.5",
        f"{SPEC},rule=pyramid",
        f"{SPEC},kernel=5",
        f"{SPEC},preset=kvpress,window=32",
    ],
)
def test_what_does_another_thing_is_another_variant(other):
    assert identify(variant(SPEC)) != identify(variant(other))


def test_runs_whose_alphas_differ_under_one_spec_get_unique_specs_by_alpha():
    half, quarter = recorded(SPEC, alpha=0.5), variant(SPEC)
    assert shown(half, quarter) == [f"{SPEC},alpha=0.5", f"{SPEC},alpha=0.25"]
    wider = recorded("snapkv+critical:budget=128", alpha=0.5)
    assert shown(wider, quarter) == ["snapkv+critical:budget=128,alpha=0.5", f"{SPEC},alpha=0.25"]


def test_a_spec_that_stands_alone_is_shown_as_it_is():
    specs = (SPEC, "snapkv:budget=64", "snapkv:budget=10%", f"{SPEC},alpha=0.5")
    assert shown(*map(variant, specs)) == list(specs)


def test_the_budget_is_the_one_asked_for_and_of_tokens_the_one_resolved():
    percent = [recorded("snapkv:budget=10%", budget=tokens) for tokens in (60, 61)]
    assert identify(percent[0]) == identify(percent[1])
    assert identify(percent[0]).budget == Budget.parse("10%")
    other = recorded("snapkv:budget=64", budget=32)
    assert identify(other).budget == Budget.parse("32")
    assert shown(variant("snapkv:budget=64"), other) == ["snapkv:budget=64", "snapkv:budget=32"]
    assert identify(variant("snapkv", params={})).budget is None
    assert identify(variant("full")).budget is None


def test_what_any_file_may_say_has_an_identity():
    hostile = VariantResult(
        spec="own:label=a,b=,=c,budget=<b>", label="<i>", method="own", critical=True
    )
    assert identify(hostile).budget is None
    assert identify(hostile) == identify(hostile)
    assert identify(hostile) != identify(
        VariantResult(spec="", label="", method="", critical=False)
    )
