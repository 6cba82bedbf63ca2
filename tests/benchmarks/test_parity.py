"""Recorded kept sets are what is kept now: those of kvpress, and the Methods page's figures."""

import json

import numpy as np
import pytest

from benchmarks import kept_figures as figures
from benchmarks import parity
from ckv_core.methods.parts.press import VERSION
from ckv_core.records.variants import VariantSpec

DRAWN = json.loads(figures.RECORDED.read_text(encoding="utf-8"))


# --- kvpress, as `make parity` recorded it ----------------------------------------------------


@pytest.mark.slow
def test_the_preset_keeps_what_kvpress_kept(real_model):
    elsewhere = 0.005  # another kind of CPU rounds otherwise, near a cut
    recorded = parity.recorded()
    assert recorded["kvpress"] == VERSION
    # KVgrad's passes take 20 s; test_headkv.py compares them with plain ones.
    specs = {spec.spec: spec for spec in parity.specs() if spec.name not in parity.SLOW}
    text = parity.recorded_text(parity.texts(real_model))
    assert text.tokens == recorded["tokens"]
    prefilled = parity.read(real_model, text, list(specs.values()))
    low = {}
    for row in recorded["rows"]:
        if (spec := specs.get(row["spec"])) is None:
            continue
        theirs = parity.recorded_sets(row, len(recorded["tokens"]))
        here = parity.ours(spec, prefilled, row["budget"])[parity.RECORDED_LAYERS]
        equal = parity.equal_share(here, theirs)
        if equal < parity.LEAST - elsewhere:
            low[row["spec"], row["share"]] = equal
    assert not low


def test_every_method_that_both_have_is_measured_and_in_the_document():
    recorded = parity.recorded()
    asked = [spec.spec for spec in parity.specs() for _ in parity.SHARES]
    assert [row["spec"] for row in recorded["rows"]] == asked
    assert parity.DOCUMENT.read_text("utf-8") == parity.document(recorded)


# --- what the Methods page draws -------------------------------------------------------------


def test_every_method_is_recorded_at_its_present_defaults():
    now = {spec.name: dict(spec.params) for spec in figures.specs()}
    assert {name: each["params"] for name, each in DRAWN["methods"].items()} == now


@pytest.mark.parametrize("share", figures.SHARES)
def test_bars_add_up_to_the_budget(share):
    tokens = DRAWN["tokens"]
    lengths = [len(part) for part in np.array_split(np.arange(tokens), figures.BARS)]
    for name, each in DRAWN["methods"].items():
        heights = figures.unwritten(each["kept"][str(share)]["bars"])
        kept = float(heights @ lengths)
        spec = VariantSpec.parse(name)
        budget = spec.holds(figures.budget_of(share, tokens), tokens)
        assert spec.at_most or kept == pytest.approx(budget, abs=tokens / 255), name
        assert kept < budget + tokens / 255
