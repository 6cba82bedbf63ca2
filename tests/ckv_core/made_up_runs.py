"""Runs with numbers chosen by hand, and the tables that the command line prints of them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ckv_core import cli
from ckv_core.request.variants import VariantSpec
from ckv_core.results.events import RunResult
from ckv_core.results.records import (
    Perturbation,
    PromptInfo,
    Receipt,
    RetainedSet,
    VariantResult,
)
from tests.made_up_models import model_info

PIECES = ("a ", "b ", "c ", "blue ", "door ", "d ", "e ", "f ")
MODEL = model_info()
PROMPT = PromptInfo(
    scenario="regular",
    token_ids=tuple(range(len(PIECES))),
    compressed_tokens=len(PIECES),
    pieces=PIECES,
    context_tokens=(0, len(PIECES)),
)


def array(*values: Any) -> np.ndarray:
    """The first layer's heads, the second layer's; one row stands for both."""
    return np.array(values if len(values) == 2 else [values[0], values[0]], np.float32)


def measured(heads: np.ndarray, final: float, kl: float, base: Any = None) -> Perturbation:
    return Perturbation(
        head_l1=heads,
        base_head_l1=base,
        layer_hidden_l1=np.array([0, final], np.float32),
        kl=kl,
    )


def variant(text: str, perturbation: Perturbation | None = None, **more: Any) -> VariantResult:
    spec = VariantSpec.parse(text)
    tokens = int(spec.budget.amount) if spec.name != "full" else len(PIECES)
    receipt = Receipt(
        budget_tokens=tokens,
        requested_entries=1,
        retained_entries=1,
        cache_bytes=1,
        full_cache_bytes=1,
    )
    plain = VariantResult(
        spec=text,
        label=spec.label,
        method=spec.method.name,
        critical=spec.critical,
        params=dict(spec.params),
        receipt=receipt,
        perturbation=perturbation,
    )
    return replace(plain, **more)


def keeping(text: str, *kept: Sequence[int]) -> VariantResult:
    """A variant that keeps these positions per KV head, the last one by its window."""
    mask = np.zeros((MODEL.layers, MODEL.kv_heads, len(PIECES)), np.bool_)
    for head, positions in enumerate(kept):
        mask[:, head, list(positions)] = True
    params = {"window": 1, "sinks": 0}
    return variant(text, retained=RetainedSet.from_mask(mask), params=params)


def run_of(*variants: VariantResult) -> RunResult:
    return RunResult(model=MODEL, prompt=PROMPT, variants=list(variants))


def printed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    *results: RunResult,
) -> str:
    """What a command prints when its runs come out like this, one after another."""
    left = list(results)
    monkeypatch.setattr("ckv_core.cli.running.load", lambda _request: (None, 0.0))
    monkeypatch.setattr("ckv_core.cli.running.run", lambda *_arguments: left.pop(0))
    monkeypatch.setattr("ckv_core.cli.running.tokenised", lambda *_arguments: PROMPT)
    assert cli.main(arguments) == 0
    assert not left
    return capsys.readouterr().out


def table(out: str, title: str) -> dict[str, dict[str, str]]:
    """Cells by the first column and the head of the table whose title begins like this."""
    (found,) = [part for part in out.split("\n\n") if f"\n{part}".count(f"\n{title}")]
    lines = f"\n{found}".split(f"\n{title}")[1].splitlines()[1:]
    rows = [re.split(r" {2,}", line) for line in lines if "  " in line]
    head, *body = rows
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}
