"""The figures of the Methods page are what the methods keep now."""

import json

import numpy as np
import pytest

from benchmarks import kept_figures as figures
from benchmarks.parity import ours, read
from ckv_core.models.loading import load_model
from ckv_core.request.compare_request import DEFAULT_MODEL
from ckv_core.request.variants import VariantSpec

RECORDED = json.loads(figures.RECORDED.read_text(encoding="utf-8"))
OF_EACH_KIND = ("streaming_llm", "snapkv", "adakv", "knorm", "h2o")
ELSEWHERE = 0.02  # another kind of CPU rounds otherwise, near a cut


def test_every_method_is_recorded_at_its_present_defaults():
    now = {spec.name: dict(spec.params) for spec in figures.specs()}
    assert {name: each["params"] for name, each in RECORDED["methods"].items()} == now


@pytest.mark.parametrize("share", figures.SHARES)
def test_bars_add_up_to_the_budget(share):
    tokens = RECORDED["tokens"]
    lengths = [len(part) for part in np.array_split(np.arange(tokens), figures.BARS)]
    for name, each in RECORDED["methods"].items():
        heights = figures.unwritten(each["kept"][str(share)]["bars"])
        kept = float(heights @ lengths)
        assert kept == pytest.approx(figures.budget_of(share, tokens), abs=tokens / 255), name


def test_all_mentions_of_words_are_found_in_pieces():
    class Made:
        class prompt:
            pieces = ("the ", "co", "de 5", "8", "29", ".", "5829 again")

    assert figures.places_of(Made, "5829") == [(2, 5), (6, 7)]  # type: ignore[arg-type]
    assert figures.places_of(Made, "29.") == [(4, 6)]  # type: ignore[arg-type]


@pytest.mark.slow
def test_methods_keep_what_is_drawn():
    loaded = load_model(DEFAULT_MODEL, "cpu", "float32")
    text = figures.text_of(loaded)
    assert (len(text.tokens), loaded.info.sha256) == (RECORDED["tokens"], RECORDED["sha256"])
    specs = [VariantSpec.parse(name) for name in OF_EACH_KIND]
    prefilled = read(loaded, text, specs)
    for spec in specs:
        kept = ours(spec, prefilled, figures.budget_of(10, len(text.tokens)))
        drawn = figures.unwritten(RECORDED["methods"][spec.name]["kept"]["10"]["bars"])
        assert np.abs(drawn - figures.bars(kept)).max() < ELSEWHERE, spec.name
