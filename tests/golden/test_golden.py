"""Every method keeps and writes what it did when this was recorded."""

import pytest
import torch

from ckv_core.methods import METHODS
from ckv_core.records.variants import VariantSpec
from tests.golden.record import measure, read, runs

SAME_ELSEWHERE = 0.9  # of the layers' sets: another kind of CPU rounds otherwise, near a cut


@pytest.mark.slow
@pytest.mark.parametrize(("name", "request_"), [pytest.param(*r, id=r[0]) for r in runs()])
def test_kept_sets_and_tokens_are_those_recorded(real_model, name, request_):
    recorded = read()
    expected, found = recorded["runs"][name], measure(real_model, request_)
    assert found.keys() == expected.keys()
    assert {spec: one["kept"] for spec, one in found.items()} == {
        spec: one["kept"] for spec, one in expected.items()
    }
    if recorded["cpu"] == torch.backends.cpu.get_cpu_capability():
        differing = [spec for spec in expected if found[spec] != expected[spec]]
        assert not differing
    same = [
        here == there
        for spec in expected
        for here, there in zip(found[spec]["layers"], expected[spec]["layers"], strict=True)
    ]
    assert sum(same) >= SAME_ELSEWHERE * len(same)


def test_every_method_is_recorded():
    written = {spec for _, each in runs() for spec in each.variants}
    assert {VariantSpec.parse(spec).method.name for spec in written} == {m.name for m in METHODS}
