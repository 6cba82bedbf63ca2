"""A run as the components show it: snapshot -> plain value dicts. No Gradio, no clock."""

from typing import Any

from ckv_core.base.memory_line import human_bytes
from ckv_core.base.spans import read_ranges
from ckv_core.experiment.verdict import verdict_of
from ckv_core.records.events import RunResult, TokensCounted
from ckv_core.records.records import PromptInfo, VariantMemory, VariantResult
from ckv_core.records.run_request import RunRequest
from ui.charts.layout import display_names
from ui.looks.palette import looks_of
from ui.services.live_runs import RunSnapshot

_STAGE_LABELS = {
    "load": "load the model",
    "prefill": "read the text",
    "blocks": "read it in blocks",
    "score": "score",
    "select": "choose",
    "decode": "answer",
    "analyse": "measure",
    "time": "time each method",
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


def head_value(view: RunSnapshot) -> dict[str, Any]:
    """Value of the RunHead: the title, and what the run is of."""
    result = view.result
    model = result.model.name if result.model else view.request.model
    crumbs = [f"{view.created_at:%-d %b %Y, %H:%M} UTC", model]
    if result.prompt is not None:
        crumbs.append(f"{result.prompt.tokens:,} tokens")
    if view.study is not None:
        counts = view.study.counts
        crumbs.append(f"{counts.samples:,} samples x {counts.points} points")
    return {"title": view.title, "crumbs": crumbs, "answer": view.request.answer}


def verdict_value(snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Value of the VerdictStrip; None until the run is over, and where nothing came out."""
    verdict = verdict_of(snapshot.result) if snapshot.is_final else None
    return verdict.to_json() if verdict else None


def actions_value(view: RunSnapshot, *, may_change: bool) -> dict[str, Any]:
    """Value of the RunActions; what takes the whole run along waits for its end."""
    result, is_of_many = view.result, view.study is not None
    return {
        "slug": view.slug,
        "kind": view.kind,
        "samples": is_of_many,
        "files": bool(result.variants),
        "forced": any(variant.forced_steps for variant in result.variants),
        "follow_ups": any(variant.follow_ups for variant in result.variants),
        "report": view.is_final and not is_of_many,
        "code": view.is_final,
        "cancel": may_change and not view.is_final and view.state != "stopping",
        "resume": may_change and view.can_resume,
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
        ("Receipts", _receipts(result) or "not known"),
        ("Times", _stage_times(snapshot) or "not known"),
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
            "first_tokens": counted.first_tokens,
            "first_chars": counted.first_chars,
        }
    text = f"{counted.tokens:,} of {counted.limit:,} tokens"
    return {"text": text, "tone": ""}


def receipt_hint(result: RunResult) -> str:
    """Whether every method kept what was requested, in a few words."""
    receipts = [v.receipt for v in result.variants if v.receipt and v.method != "full"]
    if not receipts:
        return ""
    pairs = {(each.retained_entries, each.requested_entries) for each in receipts}
    if len(pairs) == 1:
        ((used, wanted),) = pairs
        return f"{used:,} of {wanted:,} requested entries in every method"
    off = sum(used != wanted for used, wanted in pairs)
    return (
        f"{off} methods differ from the request" if off else "every method kept what was requested"
    )


def _receipts(result: RunResult) -> str:
    """Entries and bytes of each variant, requested and used."""
    lines = []
    for name, variant in zip(
        display_names(result.variants, escaped=False), result.variants, strict=True
    ):
        receipt = variant.receipt
        if receipt is not None:
            lines.append(
                f"{name}: {receipt.retained_entries:,} of {receipt.requested_entries:,} requested "
                f"entries, {human_bytes(receipt.cache_bytes)}{_peaks(variant.memory)}"
            )
    return "\n".join(lines)


def _peaks(memory: VariantMemory | None) -> str:
    """The measured peaks of one variant alone, each beside its estimate."""
    if memory is None or memory.prefill_estimate is None or memory.decode_estimate is None:
        return ""
    pairs = (
        ("in prefill", memory.prefill_peak, memory.prefill_estimate),
        ("while decoding", memory.decode_peak, memory.decode_estimate),
    )
    return "".join(
        f"; peak {when} {'not measured' if peak is None else human_bytes(peak)} (estimated "
        f"{human_bytes(estimate)})"
        for when, peak, estimate in pairs
    )


def _stage_times(snapshot: RunSnapshot) -> str:
    """Milliseconds of the stages, and what was not computed again."""
    times = [
        f"{label}: {snapshot.stage_ms[stage]:,.0f} ms"
        for stage, label in _STAGE_LABELS.items()
        if stage in snapshot.stage_ms
    ]
    return "\n".join(filter(None, (*times, _reused_prefill(snapshot.result))))


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
