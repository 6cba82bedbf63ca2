"""What readers call the variants of a run, alike in charts, maps, notes and the form."""

from dataclasses import replace

import pytest

from ckv_core.records.external_selection import ExternalSelection
from ckv_core.records.variants import VariantSpec
from tests.factories.runs import bare
from ui.charts.layout import display_names
from ui.compare.offers import variant_choices

OWN = "own"
CASES = {
    "nothing said": (("full", "snapkv", "adakv"), ["Full cache", "SnapKV", "AdaKV"]),
    "one budget": (
        ("full", "snapkv:budget=64", "adakv:budget=64"),
        ["Full cache", "SnapKV", "AdaKV"],
    ),
    "two budgets": (
        ("full", "snapkv:budget=64", "adakv:budget=96"),
        ["Full cache", "snapkv:budget=64", "adakv:budget=96"],
    ),
    "a budget and the usual one": (("snapkv", "adakv:budget=96"), ["SnapKV", "adakv:budget=96"]),
    "a parameter": (
        ("full", "snapkv:budget=64,pool=none", "adakv:budget=64"),
        ["Full cache", "snapkv:budget=64,pool=none", "AdaKV"],
    ),
    "two of a method": (("snapkv:pool=none", "snapkv"), ["SnapKV pool none", "SnapKV"]),
    "two readings": (
        ("snapkv", "snapkv+critical:stage2=raw", "snapkv+critical:stage2=pooled"),
        ["SnapKV", "CriticalKV-SnapKV (paper)", "CriticalKV-SnapKV (code)"],
    ),
    "a reading and a parameter": (
        ("snapkv+critical:stage2=pooled,alpha=0.5", "snapkv+critical_auto:stage2=pooled"),
        ["snapkv+critical:alpha=0.5,stage2=pooled", "snapkv+critical_auto:stage2=pooled"],
    ),
    "given positions": (("snapkv:budget=64", OWN), ["SnapKV", "Mine, k=3"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_method_alone_names_a_variant_only_where_the_spec_says_no_more(case):
    specs, names = CASES[case]
    own = ExternalSelection(label="Mine, k=3", rows=(None,)).spec()
    asked = [own if spec == OWN else VariantSpec.parse(spec) for spec in specs]
    assert display_names(asked, escaped=False) == names
    ran = [
        replace(
            bare(s.spec), label=s.label, critical=s.critical, params=s.params, method=s.method.name
        )
        for s in asked
    ]
    assert display_names(ran, escaped=False) == names


def test_a_name_is_the_same_before_and_after_its_budget_is_resolved_to_tokens():
    specs = [VariantSpec.parse(f"{name}:budget=20%") for name in ("snapkv", "adakv")]
    first, second = (replace(bare(s.spec), label=s.label, params=s.params) for s in specs)
    resolved = replace(first, params=dict(first.params) | {"budget": 325})
    assert display_names([resolved, second], escaped=False) == ["SnapKV", "AdaKV"]


def test_no_label_that_is_offered_has_a_comma_so_that_lists_of_labels_can_be_read():
    labels = [variant.label for variant in variant_choices().values()]
    assert "CriticalKV-AdaKV (code)" in labels
    assert len({*labels}) == len(labels)
    assert not [label for label in labels if "," in label]
