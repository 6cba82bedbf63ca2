"""Made-up sweeps whose curves, savings and best alphas are known."""

import dataclasses

import numpy as np

from ckv_core.request.compare_request import CompareRequest
from ckv_core.request.variants import VariantSpec
from ckv_core.results.events import (
    Generated,
    RunEvent,
    RunFinished,
    RunPrepared,
    RunResult,
    VariantAnalysed,
    VariantFinished,
    VariantMeasured,
    VariantSelected,
)
from ckv_core.results.records import Perturbation, Receipt, VariantResult
from tests.ui.page_fakes import model_info, prompt_info, request, snapshot
from ui.services.services import RunSnapshot, Services

SWEEP_SLUG = "sweep0123456"
LAYERS, QUERY_HEADS, KV_HEADS = 8, 6, 3
WHOLE_LAYER = 4
BUDGETS = (64, 128, 256, 512)
ALPHAS = (0.0, 0.25, 0.5)
FULL = 2_000
SCORES = {"exact_match": 0.0, "token_f1": 0.5, "edit_similarity": 0.25}


def head_l1(budget: int, alpha: float | None, *, better: float = 1.0) -> np.ndarray:
    """[layers, query_heads]; KV head g likes alpha ALPHAS[g], and one layer is not evicted."""
    likes = np.repeat(np.array(ALPHAS), QUERY_HEADS // KV_HEADS)
    miss = 0.0 if alpha is None else np.abs(likes - alpha)
    heads = np.full((LAYERS, QUERY_HEADS), better * 64 / budget) * (1 + miss)
    heads[WHOLE_LAYER] = np.nan
    return heads.astype(np.float32)


def point(  # one point of a sweep
    method: str,
    budget: int,
    alpha: float | None = None,
    *,
    better: float = 1.0,
    agreement: float | None = None,
) -> VariantResult:
    critical = alpha is not None
    spec = f"{method}{'+critical' if critical else ''}:budget={budget}"
    heads = head_l1(budget, alpha, better=better)
    return VariantResult(
        spec=spec + (f",alpha={alpha:g}" if critical else ""),
        label={"snapkv": "SnapKV", "adakv": "AdaKV"}[method] + " + CriticalKV" * critical,
        method=method,
        critical=critical,
        params=VariantSpec.parse(spec).params
        | {"budget": budget}
        | ({"alpha": alpha} if critical else {}),
        receipt=Receipt(
            budget_tokens=budget,
            requested_entries=LAYERS * KV_HEADS * budget,
            retained_entries=LAYERS * KV_HEADS * budget,
            cache_bytes=budget,
            full_cache_bytes=FULL,
        ),
        perturbation=Perturbation(
            head_l1=heads,
            base_head_l1=head_l1(budget, None) if critical else None,
            layer_hidden_l1=np.linspace(1, 100 * better * 64 / budget, LAYERS, dtype=np.float32),
            kl=0.5 * better * 64 / budget,
        ),
        agreement=agreement,
        answer_found=None if agreement is None else agreement > 0.5,
        answer_scores={} if agreement is None else SCORES,
        analysis={} if agreement is None else {"sigma_stage1": heads * budget / 100},
    )


def full_point() -> VariantResult:
    return VariantResult(
        spec="full",
        label="Full cache",
        method="full",
        critical=False,
        receipt=Receipt(
            budget_tokens=FULL,
            requested_entries=FULL,
            retained_entries=FULL,
            cache_bytes=FULL,
            full_cache_bytes=FULL,
        ),
    )


def sweep_result(*, generated: bool = False, better: float = 0.5) -> RunResult:
    """SnapKV plain and with three alphas at four budgets; `better` scales CriticalKV's figures."""
    points = [point("snapkv", b, agreement=b / 600 if generated else None) for b in BUDGETS]
    for alpha in ALPHAS:
        points += [
            point("snapkv", b, alpha, better=better, agreement=b / 512 if generated else None)
            for b in BUDGETS
        ]
    return RunResult(
        model=model_info(
            layers=LAYERS,
            query_heads=QUERY_HEADS,
            kv_heads=KV_HEADS,
            evictable_layers=tuple(at for at in range(LAYERS) if at != WHOLE_LAYER),
        ),
        prompt=prompt_info(),
        variants=[full_point(), *points],
        environment={"python": "3.11"},
        timings_ms={"prefill": 5.0},
        finished=True,
        kind="sweep",
    )


def sweep_snapshot(**changes: object) -> RunSnapshot:
    result = changes.pop("result", None) or sweep_result(generated=True)
    asked = request(kind="sweep", variants=tuple(v.spec for v in result.variants), defaults={})
    return snapshot(
        **{"slug": SWEEP_SLUG, "title": "A sweep", "request": asked, "result": result} | changes
    )


def store_run(
    services: Services, asked: CompareRequest, result: RunResult, owner: str | None = None
) -> str:
    """Save a run as if the worker had sent it; returns its slug."""
    recorder = services._recorder
    slug = recorder.create(asked, owner=owner)
    recorder.start(slug)
    for event in _events(result):
        recorder.apply(slug, event)
    recorder.finish(slug)
    return slug


def _events(result: RunResult) -> list[RunEvent]:
    assert result.model is not None
    assert result.prompt is not None
    names = ("spec", "label", "method", "critical")
    blank = [VariantResult(**{n: getattr(v, n) for n in names}) for v in result.variants]
    prepared = RunPrepared(
        result.model, result.prompt, tuple(blank), result.environment, result.kind
    )
    events: list[RunEvent] = [prepared]
    for at, found in enumerate(result.variants):
        if found.receipt:
            events.append(VariantSelected(at, found.params, found.retained, found.receipt, {}))
        if found.perturbation:
            events.append(VariantMeasured(at, found.perturbation))
        if found.analysis:
            events.append(VariantAnalysed(at, found.analysis, found.forced_steps))
        judged = (found.agreement, found.first_difference, found.answer_found)
        if found.agreement is not None:
            events.append(VariantFinished(at, *judged))
    written = ("text", "token_ids", "token_texts", "stopped")
    events.append(Generated(*(tuple(getattr(v, n) for v in result.variants) for n in written)))
    return [*events, RunFinished(result.timings_ms)]


def run_of(prompt: int, better: float = 0.5, **changes: object):
    """A run on its own prompt."""
    result = sweep_result(better=better)
    tokens = tuple(range(prompt, prompt + 10))
    result.prompt = dataclasses.replace(result.prompt, token_ids=tokens)
    return sweep_snapshot(slug=f"runabc{prompt}", result=result, **changes)


def runs_of(count: int):
    return [run_of(at, 0.5 + 0.04 * at) for at in range(count)]
