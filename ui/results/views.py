"""A run as the components show it: snapshot -> plain value dicts. No Gradio, no clock."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ckv_core.base.memory_line import human_bytes
from ckv_core.base.spans import read_ranges
from ckv_core.experiment.runs import together
from ckv_core.experiment.verdict import Verdict, verdict_of
from ckv_core.records.events import STAGES, RunResult, Stage, TokensCounted
from ckv_core.records.records import PromptInfo, VariantResult
from ckv_core.records.run_request import RunRequest
from storage.records import ResultCounts
from ui.charts.layout import display_names
from ui.looks.palette import Look, looks_of
from ui.services.live_runs import RunSnapshot
from ui.tables.points import looks_by_place

STAGE_LABELS: dict[Stage, str] = {
    "load": "Load model",
    "prefill": "Read prompt",
    "score": "Score",
    "select": "Select",
    "decode": "Generate",
    "analyse": "Analyse",
}
_MEMORY_LABELS = {
    "prefill_peak": "estimated peak of the prefill",
    "cache": "cache of the prompt",
    "prefill_reused": "of it taken over from another prompt",
    "variants": "the variants' caches",
    "total": "estimate in all",
    "available": "available before the run",
    "measured_peak": "measured peak",
    "held": "held while decoding",
}
PREVIEW_CHARS = 2_000


def status_value(snapshot: RunSnapshot, now: datetime) -> dict[str, Any]:
    progress = snapshot.progress
    is_running = snapshot.state == "running"
    active = progress.stage if progress and is_running else None
    waits = snapshot.reason if is_running else ""  # of a run of another process
    elapsed = None
    if snapshot.started_at is not None:
        elapsed = ((snapshot.finished_at or now) - snapshot.started_at).total_seconds()
    return {
        "state": snapshot.state,
        "stage": active,
        "stages": _shown_stages(snapshot, active),
        "fraction": progress.fraction if progress and active else None,
        "detail": progress.detail if progress and active else waits,
        "reason": snapshot.reason or "",
        "queue_ahead": snapshot.queue_ahead,
        "elapsed_s": None if elapsed is None else max(0.0, elapsed),
        "chips": _run_chips(snapshot),
    }


def progress_sentence(view: RunSnapshot, counts: ResultCounts) -> str:
    """How far a run of many samples is, what it does now, and why it stopped."""
    now = view.pace
    parts = [counts.sentence]
    if counts.failed_for_good:
        parts.append(f"{counts.failed_for_good:,} of them fail each time")
    if now is not None and now.sample:
        parts.append(f"last sample {now.sample}")
    if now is not None and now.seconds_left is not None:
        parts.append(f"about {duration(now.seconds_left)} left")
    ends = " What a cluster is working on ends first." if view.state == "stopping" else ""
    return f"{', '.join(parts)}. {view.reason}{ends}".rstrip()


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def verdict_value(snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Value of the VerdictStrip; None until the run is over, and where nothing came out."""
    verdict = verdict_of(snapshot.result) if snapshot.is_final else None
    if verdict is None:
        return None
    return shown_verdict(verdict, _looks(snapshot.result))


def shown_verdict(verdict: Verdict, looks: Mapping[int, Look]) -> dict[str, Any]:
    """The same of any run; each member has the look of its index."""
    value = verdict.to_json()
    for group in value["groups"]:
        for member in group["variants"]:
            member["look"] = looks[member["index"]].value
    return value


def _looks(result: RunResult) -> dict[int, Look]:
    """By index of the variant; of a sweep one for all budgets of a method."""
    if result.kind != "sweep":
        return dict(enumerate(looks_of(result.variants)))
    points = together([result])
    looks = looks_by_place(points)
    return {row.index: looks[row.place] for row in points.rows}


def links_value(snapshot: RunSnapshot) -> dict[str, Any]:
    """Value of the RunLinks component; what takes the whole run along waits for its end."""
    result = snapshot.result
    return {
        "slug": snapshot.slug,
        "kind": snapshot.request.kind,
        "files": bool(result.variants),
        "forced": any(variant.forced_steps for variant in result.variants),
        "follow_ups": any(variant.follow_ups for variant in result.variants),
        "report": snapshot.is_final,
    }


def kept_value(snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Value of the KeptTokens component; None until every variant has selected.

    A run that ended early shows what it had.
    """
    result = snapshot.result
    names, looks = display_names(result.variants, escaped=False), looks_of(result.variants)
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
                "look": looks[index].value,
                "label": names[index],
                "spec": variant.spec,
                "window": variant.params.get("window", 0),
                "sinks": variant.params.get("sinks", 0),
                "protected": protected_spans(variant, result.prompt),
                **({"entries": list(variant.held.entries)} if variant.held else {}),
            }
            for index, variant in kept
        ],
        "context": list(result.prompt.context_tokens),
        "answer": snapshot.request.answer,
        "key": f"{snapshot.slug}/{len(kept)}/{sum(v.held is not None for _, v in kept)}",
    }


def protected_spans(variant: VariantResult, prompt: PromptInfo) -> list[list[int]]:
    """[first, end) of each passage that a run protected, the question among them."""
    return [
        [place.start, place.stop]
        for name in ("protected", "question_at")
        for place in read_ranges(variant.params.get(name), prompt.compressed_tokens)
    ]


def prompt_value(prompt: PromptInfo) -> dict[str, Any]:
    """What the KeptTokens component fetches: token texts, and where the context lies."""
    return {
        "pieces": list(prompt.pieces),
        "compressed": prompt.compressed_tokens,
        "tokens": prompt.tokens,
        "context": list(prompt.context_tokens),
    }


def details_value(snapshot: RunSnapshot) -> dict[str, Any]:
    """Label and text of everything that defines the run; all of it as plain text."""
    request, result = snapshot.request, snapshot.result
    memory = [
        f"{label}: {human_bytes(result.memory[key])}"
        for key, label in _MEMORY_LABELS.items()
        if key in result.memory
    ]
    prompt = "not known"
    if result.prompt is not None:
        tokens, compressed = result.prompt.tokens, result.prompt.compressed_tokens
        prompt = f"{tokens:,} tokens, the first {compressed:,} compressed"
    context = request.context
    if len(context) > PREVIEW_CHARS:
        context = f"{context[:PREVIEW_CHARS]}\n({len(context):,} characters in all)"
    varied = {"budget": ", ".join(request.budgets), "alpha": ", ".join(request.alphas)}
    settings = varied | dict(request.defaults)
    rows = [
        ("Question", request.question or "none"),
        ("Expected answer", request.answer or "none"),
        ("Scenario", request.scenario),
        ("Protected text", "\n".join(request.protect) or "none"),
        ("Variants", "\n".join([*request.variants, *map(str, request.own_indices)])),
        ("Settings for all", ", ".join(f"{k}={v}" for k, v in settings.items() if v) or "none"),
        ("New tokens", f"up to {request.max_new_tokens}{'; ignores EOS' * request.ignore_eos}"),
        ("Diagnostics", ", ".join(request.analysis) or "off"),
        ("Follow-up questions", "\n".join(request.follow_ups) or "none"),
        ("Memory", "\n".join(memory) or "not known"),
        ("Model", _model_text(request, result)),
        ("Prompt", prompt),
        ("Versions", ", ".join(f"{k} {v}" for k, v in result.environment.items()) or "not known"),
        ("Created", f"{snapshot.created_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("Context", context),
    ]
    return {"rows": [{"label": label, "text": text} for label, text in rows]}


def count_value(counted: TokensCounted, request: RunRequest) -> dict[str, Any]:
    """The prompt's length against the model's limit, for the line under the context."""
    if counted.error:
        field = "context" if counted.tokens else counted.field
        return {"text": counted.error, "tone": "error", "field": field}
    over = counted.tokens + request.max_new_tokens - counted.limit
    if over > 0:
        return {
            "text": f"{counted.tokens:,} tokens and {request.max_new_tokens:,} new ones: {over:,} "
            f"over the model's limit of {counted.limit:,}. Shorten the text by {over:,} tokens.",
            "count": f"{over:,} tokens too many",
            "tone": "error",
            "field": "context",
            "tokens": counted.tokens,
            "first_tokens": counted.first_tokens,
            "first_chars": counted.first_chars,
        }
    text = f"{counted.tokens:,} of {counted.limit:,} tokens"
    return {"text": text, "tone": "", "tokens": counted.tokens}


def _shown_stages(snapshot: RunSnapshot, active: Stage | None) -> list[dict[str, Any]]:
    """Each with how far it is; of a run that ended early only those that it came through."""
    analysed = snapshot.request.analysis or snapshot.request.follow_ups
    is_cut = snapshot.is_final and snapshot.state != "done"
    shown = []
    for stage in STAGES:
        ms, state = snapshot.stage_ms.get(stage), "waiting"
        passed = active is not None and STAGES.index(stage) < STAGES.index(active)
        if stage == active:
            state = "active"
        elif ms is not None or passed or snapshot.state == "done":
            state = "done"
        if (state == "done" or not is_cut) and (analysed or stage != "analyse"):
            shown.append({"name": stage, "label": STAGE_LABELS[stage], "state": state, "ms": ms})
    return shown


def _run_chips(snapshot: RunSnapshot) -> list[str]:
    result, request = snapshot.result, snapshot.request
    # The points of a stored run are not read: this version need not know its SPECs.
    wanted = request.variants if request.kind == "compare" else ()
    count = len(result.variants or wanted)
    chips = [f"{count} variants"] if count else []
    if result.prompt:
        chips.append(f"{result.prompt.tokens:,} prompt tokens")
    if result.model:
        chips.append(f"{result.model.name}, {result.model.dtype} on {result.model.device}")
    if reused := _reused_prefill(result):
        chips.append(reused)
    if total := result.memory.get("total"):
        chips.append(f"memory estimate about {human_bytes(total)}")
    if peak := result.memory.get("measured_peak"):
        chips.append(f"peak {human_bytes(peak)} measured")
    return chips


def _reused_prefill(result: RunResult) -> str:
    """What the worker still had of the prompt: all of it, its first tokens, or nothing."""
    if result.timings_ms.get("prefill") == 0.0:
        return "prefill reused"
    taken, cache = result.memory.get("prefill_reused"), result.memory.get("cache")
    if not (taken and cache and result.prompt):
        return ""
    tokens = result.prompt.compressed_tokens
    return f"prefill reused: {tokens * taken // cache:,} of {tokens:,} tokens"


def _model_text(request: RunRequest, result: RunResult) -> str:
    model = result.model
    if model is None:
        return request.model
    left_whole = model.layers - len(model.evictable_layers)
    whole = f", {left_whole} layers not evicted" if left_whole else ""
    return (
        f"{model.name}: {model.layers} layers{whole}, {model.query_heads} query and "
        f"{model.kv_heads} KV heads of {model.head_dim}, {model.dtype} on {model.device}, "
        f"sha256 {model.sha256}"
    )
