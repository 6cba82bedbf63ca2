"""The advanced editor: parts become a SPEC with a name, or a reason why they cannot."""

import dataclasses

import pytest

from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS, POLICIES, SELECTORS, STORES
from ckv_core.methods.base import budget_rules, plain_selectors
from ckv_core.request.variants import VariantSpec
from tests.factories.app import request
from ui.compare.editor import composed_value, with_own
from ui.compare.form_values import FormValues, describe_variants

PARTS = {"method": "knorm", "rule": "pyramid", "select": "chunks", "store": "int4"}


def asked(name: str = "", values: dict | None = None, **parts: str) -> dict:
    return {"parts": parts, "values": values or {}, "name": name}


def test_every_registered_part_is_offered_with_a_sentence():
    fields = {field["key"]: field["options"] for field in composed_value({})["parts"]}
    words = {key: [each["word"] for each in options] for key, options in fields.items()}
    assert words["method"] == [each.name for each in METHODS if each.evicts]
    for key, parts in (
        ("rule", budget_rules()),
        ("select", plain_selectors()),
        ("selector", SELECTORS),
        ("policy", POLICIES),
        ("store", STORES),
    ):
        assert words[key] == ["", *parts]
        assert all(each["told"].endswith(".") for each in fields[key][1:]), key


def test_a_combination_becomes_a_spec_with_its_parameters():
    value = composed_value(asked("Mine", {"beta": "5", "window": "9"}, **PARTS))
    spec = "knorm:rule=pyramid,select=chunks,store=int4,beta=5,name=Mine"
    assert (value["spec"], value["tone"]) == (spec, "good")
    names = {each["name"] for each in value["parameters"]}
    assert {"beta", "pyramid_window", "chunk", "residual", "layout", "budget"} <= names
    assert not names & {"window", "every"}  # what was typed for another combination is left out
    (beta,) = (each for each in value["parameters"] if each["name"] == "beta")
    assert (beta["range"], beta["default"]) == ("1 to 1000.", "20.0")
    assert "scores key_norm, budgets pyramid, selector chunks" in value["told"]


def test_a_policy_and_a_choice_after_the_plus_are_written():
    value = composed_value(
        asked("Mine", {"to": "80"}, method="adakv", selector="critical", policy="every")
    )
    assert value["spec"] == "adakv+critical:every=256,to=80,name=Mine"
    assert value["tone"] == "good"


@pytest.mark.parametrize(
    ("parts", "values", "name", "said"),
    [
        ({"method": "keydiff", "rule": "adaptive"}, {}, "A", "cannot be compared between heads"),
        ({"method": "h2o", "rule": "pyramid"}, {}, "A", "gives heads different budgets"),
        ({"method": "knorm", "selector": "critical"}, {}, "A", "has no attention score"),
        ({"method": "knorm", "policy": "every"}, {}, "A", "does not score by an observation"),
        ({"method": "snapkv"}, {"window": "0"}, "A", "window must be a whole number"),
        ({"method": "snapkv"}, {"window": "8,sinks=4"}, "A", "has a comma"),
        ({"method": "snapkv"}, {}, "<script>", "A variant's name has"),
        ({"rule": "nonsense"}, {}, "A", "rule must be one of"),
    ],
)
def test_what_is_unfit_says_why_in_a_sentence(parts, values, name, said):
    value = composed_value(asked(name, values, **parts))
    assert value["tone"] == "error"
    assert said in value["told"]
    assert value["parameters"]
    with pytest.raises(ConfigError, match=said):
        with_own([], asked(name, values, **parts))


@pytest.mark.parametrize(
    "sent", [{}, {"parts": 3}, {"parts": {"method": 7, 8: None}, "values": [1], "name": {}}]
)
def test_what_a_client_makes_up_does_no_harm(sent):
    assert composed_value(sent)["parts"]


def test_it_joins_the_variants_once_and_needs_a_name():
    with pytest.raises(ConfigError, match="Give it a name"):
        with_own(["full"], asked(**PARTS))
    chosen = with_own(["full"], asked("Mine", **PARTS))
    assert chosen == ["full", "knorm:rule=pyramid,select=chunks,store=int4,name=Mine"]
    with pytest.raises(ConfigError, match="Mine is the same variant"):
        with_own(chosen, asked("Other", **PARTS))
    with pytest.raises(ConfigError, match="'Mine' is taken"):
        with_own(chosen, asked("Mine", method="snapkv"))


def test_a_named_variant_survives_the_form_among_the_ticked_ones():
    named = "knorm:rule=pyramid,name=Mine"
    run = request(variants=("full", named, "snapkv:window=4"), defaults={"budget": "10%"})
    form = FormValues.from_request(run)
    assert form.variants == ("full", named)
    assert form.more_variants == "snapkv:window=4"
    again = FormValues.from_controls(form.controls())
    assert set(again.request().variants) == set(run.variants)
    only = dataclasses.replace(form, more_variants="")
    assert describe_variants(only) == "2 variants: Full cache, Mine."
    assert VariantSpec.parse(named).label == "Mine"
