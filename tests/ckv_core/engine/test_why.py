"""Evicted entries put back: as many as before in every head, and what the rows came to."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.engine.why import attempts, put_back, why
from ckv_core.errors import ConfigError, PromptError
from ckv_core.experiment.why import why_of
from ckv_core.records.passages import evidence_spans
from ckv_core.records.work_requests import ALL_HEADS, CONTROL, CONTROLS, WhyRequest
from tests.factories.events import folded
from tests.factories.models import tiny_model
from tests.factories.tiny_runs import BASE

LAYERS, HEADS, POSITIONS = 4, 2, 40
WORDS = " ".join(BASE.context.split()[20:26])
ASKED = WhyRequest(
    run=replace(BASE, answer="zebra", max_new_tokens=3), variant="snapkv", evidence=(WORDS,)
)


@st.composite
def sets(draw):
    """Kept set, ranks with some entries that are never evicted, and evidence."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (LAYERS, HEADS, POSITIONS)
    ranks = rng.permuted(np.broadcast_to(np.arange(POSITIONS), shape), axis=-1)
    fixed = rng.random(POSITIONS) < 0.2
    kept = (rng.random(shape) < draw(st.floats(0.05, 0.9))) | fixed
    kept[0] = True  # a layer that is not evicted
    return kept, np.where(fixed, -1, ranks), (rng.random(POSITIONS) < 0.3) & ~fixed


@given(given=sets())
def test_every_head_holds_as_many_as_before_and_loses_no_evidence(given):
    kept, ranks, evidence = given
    rows = attempts(kept, ranks, evidence, (1, 2, 3))
    for label, mask in rows.items():
        assert (mask.sum(-1) == kept.sum(-1)).all(), label
        assert (mask | ~kept)[..., evidence].all()
        assert (mask | ~kept)[ranks == -1].all()
        assert mask[0].all()
        left, stayed = kept & ~mask, kept & mask & ~evidence & (ranks >= 0)
        for layer, head in np.argwhere(left.any(-1)):
            others = ranks[layer, head][stayed[layer, head]]
            assert ranks[layer, head][left[layer, head]].min() > others.max(initial=-1)
    if ALL_HEADS in rows:
        came = (rows[ALL_HEADS] & ~kept).sum(-1)
        assert not (rows[ALL_HEADS] & ~kept)[..., ~evidence].any()
        draws = [rows[CONTROL.format(n + 1)] & ~kept for n in range(CONTROLS)]
        for drawn in draws:
            free = (~kept & ~evidence).sum(-1)
            assert (drawn.sum(-1) == np.minimum(came, free)).all()
            assert not drawn[..., evidence].any()


def test_what_comes_back_where_there_is_no_room_is_the_best_ranked():
    kept = np.array([[[True, True, False, False, False]]])
    ranks = np.array([[[-1, 3, 2, 0, 1]]])
    evidence = np.array([False, False, True, True, True])
    assert put_back(kept, ranks, ~kept, evidence).tolist() == [[[True, False, False, True, False]]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", ["snapkv", "adakv+critical", "streaming_llm", "snapkv:layout=layer"]
)
def test_the_rows_run_beside_the_full_cache_and_the_variant(spec):
    loaded = tiny_model("llama")
    result = folded(why(replace(ASKED, variant=spec), loaded))
    full, own, *rows = result.variants
    assert (full.method, own.params["budget"]) == ("full", 48)
    kept = own.retained.mask()
    assert result.finished
    assert len(rows) > CONTROLS
    for row in rows:
        assert (row.retained.mask().sum(-1) == kept.sum(-1)).all()
        assert row.text
    found = why_of(result)
    ((first, end),) = evidence_spans(result.prompt, (WORDS,), "")
    missing = int((~kept[..., first:end]).sum())
    assert 0 < found.attempts[0].put_back <= missing
    assert evidence_spans(result.prompt, (f"tokens:{first}-{end - 1}",), "") == [(first, end)]
    assert "The full cache does not answer either" in found.sentence


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"variant": "full"}, ConfigError, "does not evict"),
        ({"variant": "h2o"}, ConfigError, "does not evict the prompt once"),
        ({"variant": "snapkv:budget=100%"}, ConfigError, "keeps the whole prompt"),
        ({"run": replace(ASKED.run, answer=" ")}, ConfigError, "expected answer"),
        ({"evidence": ("not there",)}, PromptError, "Neither the evidence nor"),
        ({"evidence": ()}, PromptError, "Neither the evidence nor"),
    ],
)
def test_what_cannot_be_put_back_is_refused(changes, error, sentence):
    with pytest.raises(error, match=sentence):
        folded(why(replace(ASKED, **changes), tiny_model("llama")))
