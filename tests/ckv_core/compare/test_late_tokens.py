"""Tokens fetched one step late, as on CUDA: the same texts, ends, series and cancelling."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from ckv_core.compare import generate
from ckv_core.compare.compare import compare
from ckv_core.engine import running_rows
from ckv_core.errors import EngineError, RunCancelledError
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import Generated, RunResult
from tests.factories.models import tiny_model
from tests.factories.tiny_runs import short_request
from tests.reference.report import report

VARIANTS = ("full", "snapkv", "adakv+critical", "tova", "h2o", "snapkv:every=6,to=4,window=3")


def request(**changes: Any) -> CompareRequest:
    settings = {"context": report()[:300], "defaults": {"budget": "40"}, "max_new_tokens": 14}
    return short_request(*VARIANTS, **settings | changes)


def run(
    asked: CompareRequest, loaded: LoadedModel, late: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Any], list[Generated]]:
    for module in (generate, running_rows):
        monkeypatch.setattr(module, "fetches_late", lambda _device: late)
    result, streamed = RunResult(), []
    for event in compare(asked, loaded):
        result.apply(event)
        streamed += [event] if isinstance(event, Generated) else []
    rows = [
        (
            variant.token_ids,
            variant.text,
            variant.stopped,
            variant.held,
            variant.agreement,
            [answer.token_ids for answer in variant.follow_ups or ()],
        )
        for variant in result.variants
    ]
    return rows, streamed


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scenario": "regular"},
        {"max_new_tokens": 1},
        {"max_new_tokens": 2},
        {"follow_ups": ("And who paid?",), "max_new_tokens": 5},
    ],
    ids=lambda changes: ",".join(map(str, changes)) or "plain",
)
def test_late_tokens_are_the_same(changes, monkeypatch):
    at_once, _ = run(request(**changes), tiny_model("llama"), False, monkeypatch)
    late, _ = run(request(**changes), tiny_model("llama"), True, monkeypatch)
    assert late == at_once


def test_a_row_that_ends_takes_nothing_of_the_step_it_was_in_for(monkeypatch):
    """Rows end one after another; texts, ends and what policies held are as without."""
    loaded = tiny_model("llama")
    free, _ = run(request(), loaded, False, monkeypatch)
    ends = frozenset(row[0][3 + at] for at, row in enumerate(free))
    stopping = replace(loaded, eos_token_ids=ends)
    asked = request(ignore_eos=False)
    at_once, shown = run(asked, stopping, False, monkeypatch)
    late, shown_late = run(asked, stopping, True, monkeypatch)
    assert late == at_once
    assert len({len(row[0]) for row in at_once}) > 1
    assert {row[2] for row in at_once} >= {"eos"}
    assert shown[-1] == shown_late[-1]
    for held in (row[3] for row in late):
        assert held is None or len(held.entries) in {len(row[0]) for row in late}


def test_a_late_run_is_cancelled_within_a_step(monkeypatch):
    for module in (generate, running_rows):
        monkeypatch.setattr(module, "fetches_late", lambda _device: True)
    seen: list[Any] = []

    def stop() -> bool:
        return any(isinstance(event, Generated) for event in seen)

    with pytest.raises(RunCancelledError):
        seen.extend(compare(request(), tiny_model("llama"), stop))


def test_an_overflow_is_told_when_the_token_arrives():
    chosen = running_rows.Chosen(torch.tensor([[0.0, 1.0], [float("nan"), 0.0]]))
    with pytest.raises(EngineError, match="not finite"):
        chosen.read()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tokens_arrive_from_a_device():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    chosen = running_rows.Chosen(logits.cuda())
    chosen.keep_rows([3, 1])
    assert chosen.tokens.tolist() == chosen.read() == logits.argmax(-1)[[3, 1]].tolist()
