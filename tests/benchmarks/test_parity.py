"""What preset=kvpress keeps against what kvpress 0.5.5 kept when `make parity` recorded it."""

import pytest

from benchmarks import parity
from ckv_core.methods.parts.press import VERSION
from ckv_core.models.loading import load_model
from ckv_core.request.compare_request import DEFAULT_MODEL

ELSEWHERE = 0.005  # another kind of CPU rounds otherwise, near a cut


@pytest.mark.slow
def test_the_preset_keeps_what_kvpress_kept():
    recorded = parity.recorded()
    assert recorded["kvpress"] == VERSION
    specs = {spec.spec: spec for spec in parity.specs()}
    loaded = load_model(DEFAULT_MODEL, "cpu", "float32")
    text = parity.recorded_text(parity.texts(loaded))
    assert text.tokens == recorded["tokens"]
    prefilled = parity.read(loaded, text, list(specs.values()))
    low = {}
    for row in recorded["rows"]:
        spec = specs[row["spec"]]
        theirs = parity.recorded_sets(row, len(recorded["tokens"]))
        here = parity.ours(spec, prefilled, row["budget"])[parity.RECORDED_LAYERS]
        equal = parity.equal_share(here, theirs)
        least = row["equal"] - 0.05 if spec.name in parity.CAUSES else parity.LEAST
        if equal < least - ELSEWHERE:
            low[row["spec"], row["share"]] = equal
    assert not low


def test_every_method_that_both_have_is_measured_and_in_the_document():
    recorded = parity.recorded()
    asked = [spec.spec for spec in parity.specs() for _ in parity.SHARES]
    assert [row["spec"] for row in recorded["rows"]] == asked
    assert parity.DOCUMENT.read_text("utf-8") == parity.document(recorded)
    assert {spec.name for spec in parity.specs()} >= parity.CAUSES.keys()
