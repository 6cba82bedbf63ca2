"""A run as the components show it: snapshot -> plain value dicts. No Gradio, no clock."""

from datetime import datetime
from typing import Any

from ckv_core.config import CompareRequest
from ckv_core.events import STAGES, RunResult, Stage
from ckv_core.records import VariantResult
from ckv_core.worker.messages import TokensCounted
from storage.records import RunSummary
from ui.services import RunSnapshot
from ui.summary import kept_share, summary_value

__all__ = [
    "count_value",
    "details_value",
    "generations_value",
    "kept_value",
    "perturbed_variants",
    "run_row",
    "status_value",
    "summary_value",
]

STAGE_LABELS: dict[Stage, str] = {
    "load": "Load model",
    "prefill": "Read prompt",
    "score": "Score",
    "select": "Select",
    "decode": "Generate",
    "analyse": "Analyse",
}
PREVIEW_CHARS = 2_000


def status_value(snapshot: RunSnapshot, now: datetime) -> dict[str, Any]:
    """Value of the StatusBar component."""
    progress = snapshot.progress
    active = progress.stage if progress and snapshot.state == "running" else None
    return {
        "state": snapshot.state,
        "stage": active,
        "stages": [_stage(snapshot, stage, active) for stage in _stages(snapshot)],
        "fraction": progress.fraction if progress and active else None,
        "detail": progress.detail if progress and active else "",
        "reason": snapshot.reason or "",
        "queue_ahead": snapshot.queue_ahead,
        "elapsed_s": _elapsed(snapshot, now),
        "chips": _run_chips(snapshot),
    }


def generations_value(snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Value of the Generations component; None until the variants are known."""
    result = snapshot.result
    if not result.variants:
        return None
    reference = next((v for v in result.variants if v.method == "full"), None)
    return {
        "cards": [
            {
                "index": index,
                "label": variant.label,
                "spec": variant.spec,
                "status": _generation_status(snapshot, variant),
                "chips": _variant_chips(variant),
                "token_texts": list(variant.token_texts),
                "first_difference": variant.first_difference,
                "reference": variant is reference,
                "stopped": variant.stopped,
                "answer": {True: "found", False: "missing", None: None}[variant.answer_found],
            }
            for index, variant in enumerate(result.variants)
        ],
        "answer": snapshot.request.answer,
    }


def kept_value(snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Value of the KeptTokens component; None until every variant has selected.

    A run that ended early shows what it had.
    """
    result = snapshot.result
    kept = [(i, v) for i, v in enumerate(result.variants) if v.retained is not None]
    waiting = any(v.receipt is None for v in result.variants)
    if result.model is None or result.prompt is None or not kept:
        return None
    if waiting and not snapshot.is_final:
        return None
    return {
        "slug": snapshot.slug,
        "base": "/data",
        "layers": result.model.layers,
        "kv_heads": result.model.kv_heads,
        "positions": result.prompt.compressed_tokens,
        "evictable": list(result.model.evictable_layers),
        "variants": [
            {
                "index": index,
                "label": variant.label,
                "spec": variant.spec,
                "window": variant.params.get("window", 0),
                "sinks": variant.params.get("sinks", 0),
            }
            for index, variant in kept
        ],
        "context": list(result.prompt.context_tokens),
        "key": f"{snapshot.slug}/{len(kept)}",
    }


def perturbed_variants(result: RunResult) -> list[int]:
    """Indices of the variants whose heads can be set against their own base."""
    return [
        index
        for index, variant in enumerate(result.variants)
        if variant.perturbation is not None and variant.perturbation.base_head_l1 is not None
    ]


def details_value(snapshot: RunSnapshot) -> dict[str, Any]:
    """Label and text of everything that defines the run; all of it as plain text."""
    request, result = snapshot.request, snapshot.result
    rows = [
        ("Question", request.question or "none"),
        ("Reference answer", request.answer or "none"),
        ("Scenario", request.scenario),
        ("Variants", "\n".join(request.variants)),
        ("Settings for all", _defaults_text(request)),
        ("New tokens", _new_tokens_text(request)),
        ("Model", _model_text(request, result)),
        ("Prompt", _prompt_text(result)),
        ("Versions", ", ".join(f"{k} {v}" for k, v in result.environment.items()) or "not known"),
        ("Created", f"{snapshot.created_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("Context", _preview(request.context)),
    ]
    return {"rows": [{"label": label, "text": text} for label, text in rows]}


def count_value(counted: TokensCounted, request: CompareRequest) -> dict[str, str]:
    """The prompt's length against the model's limit, for the line under the context."""
    if counted.error:
        return {"text": counted.error, "tone": "error"}
    over = counted.tokens + request.max_new_tokens - counted.limit
    if over > 0:
        return {
            "text": f"{counted.tokens:,} tokens and {request.max_new_tokens:,} new ones: {over:,} "
            f"over the model's limit of {counted.limit:,}. Shorten the context by {over:,} tokens.",
            "tone": "error",
        }
    return {"text": f"{counted.tokens:,} of {counted.limit:,} tokens", "tone": ""}


def run_row(run: RunSummary) -> dict[str, Any]:
    """One line of the list of runs."""
    return {
        "slug": run.slug,
        "title": run.title,
        "state": run.state,
        "model": run.model_name,
        "variants": len(run.variant_specs),
        "specs": list(run.variant_specs),
        "tokens": run.prompt_tokens,
        "created": run.created_at.isoformat(),
    }


def _stages(snapshot: RunSnapshot) -> list[Stage]:
    """The stages of this run; the laboratory's only where it was asked for."""
    request = snapshot.request
    wanted = bool(request.analysis or request.follow_ups)
    return [stage for stage in STAGES if wanted or stage != "analyse"]


def _stage(snapshot: RunSnapshot, stage: Stage, active: Stage | None) -> dict[str, Any]:
    ms = snapshot.stage_ms.get(stage)
    passed = active is not None and STAGES.index(stage) < STAGES.index(active)
    if stage == active:
        state = "active"
    elif ms is not None or passed or snapshot.state == "done":
        state = "done"
    else:
        state = "waiting"
    return {"name": stage, "label": STAGE_LABELS[stage], "state": state, "ms": ms}


def _elapsed(snapshot: RunSnapshot, now: datetime) -> float | None:
    if snapshot.started_at is None:
        return None
    return max(0.0, ((snapshot.finished_at or now) - snapshot.started_at).total_seconds())


def _run_chips(snapshot: RunSnapshot) -> list[str]:
    result = snapshot.result
    chips = [f"{len(snapshot.request.variants)} variants"]
    if result.prompt:
        chips.append(f"{result.prompt.tokens:,} prompt tokens")
    if result.model:
        chips.append(f"{result.model.name}, {result.model.dtype} on {result.model.device}")
    if result.timings_ms.get("prefill") == 0.0:
        chips.append("prefill reused")
    return chips


def _generation_status(snapshot: RunSnapshot, variant: VariantResult) -> str:
    if variant.stopped is not None:
        return "done"
    if snapshot.is_final:
        return snapshot.state
    count = len(variant.token_ids)
    return f"{count} of {snapshot.request.max_new_tokens} tokens" if count else "waiting"


def _variant_chips(variant: VariantResult) -> list[str]:
    chips = []
    share = kept_share(variant)
    if share is not None:
        chips.append(f"{share:.1%} of the cache")
    if variant.agreement is not None and variant.method != "full":
        chips.append(f"{variant.agreement:.0%} agreement")
    if variant.tokens_per_second is not None:
        chips.append(f"{variant.tokens_per_second:.1f} tokens/s")
    return chips


def _defaults_text(request: CompareRequest) -> str:
    return ", ".join(f"{key}={value}" for key, value in request.defaults.items()) or "none"


def _new_tokens_text(request: CompareRequest) -> str:
    ending = "; goes on after the end-of-text token" if request.ignore_eos else ""
    return f"up to {request.max_new_tokens}{ending}"


def _model_text(request: CompareRequest, result: RunResult) -> str:
    model = result.model
    if model is None:
        return request.model
    left_whole = model.layers - len(model.evictable_layers)
    whole = f", {left_whole} layers left whole" if left_whole else ""
    return (
        f"{model.name}: {model.layers} layers{whole}, {model.query_heads} query and "
        f"{model.kv_heads} KV heads of {model.head_dim}, {model.dtype} on {model.device}, "
        f"sha256 {model.sha256}"
    )


def _prompt_text(result: RunResult) -> str:
    if result.prompt is None:
        return "not known"
    return (
        f"{result.prompt.tokens:,} tokens, the first {result.prompt.compressed_tokens:,} compressed"
    )


def _preview(text: str) -> str:
    if len(text) <= PREVIEW_CHARS:
        return text
    return f"{text[:PREVIEW_CHARS]}\n({len(text):,} characters in all)"
