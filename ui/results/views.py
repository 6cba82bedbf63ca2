"""A run as the components show it: snapshot -> plain value dicts. No Gradio, no clock."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ckv_core.base.memory_line import human_bytes
from ckv_core.base.spans import read_ranges
from ckv_core.experiment.points import Points
from ckv_core.experiment.regimes import run_regimes
from ckv_core.experiment.verdict import verdict_of
from ckv_core.methods import METHODS
from ckv_core.records.events import STAGES, Progress, RunResult, Stage, TokensCounted
from ckv_core.records.grid import duration
from ckv_core.records.records import PromptInfo, Receipt, VariantMemory, VariantResult
from ckv_core.records.run_request import RunRequest
from storage.records import ResultCounts
from ui.charts.catalog import CHARTS, DIAGNOSTICS, MEMORY, PERTURBATION, SWEEP_CURVES
from ui.charts.layout import Chart, chart_values, display_names
from ui.charts.points import POINTS_CHART
from ui.looks.palette import looks_of
from ui.services.live_runs import RunSnapshot

# --- how far a run is, in the place of its verdict: one sentence, and one bar over all stages ---

# What readers see of the engine's stages, and about how much of a run each takes.
STEPS: tuple[tuple[str, str, tuple[Stage, ...], float], ...] = (
    ("Read the text", "Reading the text", ("load", "prefill"), 0.3),
    ("Choose what to keep", "Choosing what to keep", ("score", "select"), 0.2),
    ("Answer", "Answering", ("decode",), 0.4),
    ("Measure", "Measuring", ("analyse",), 0.1),
    ("Time each method", "Timing each method alone", ("time",), 1.0),
)
_LEAST_PART = 0.02  # of a run that must have passed before the rest is estimated


def state_value(view: RunSnapshot, now: datetime) -> dict[str, Any]:
    """What the VerdictStrip shows of a run that is not over, or did not come to its end.

    Returns:
        {"state", "sentence", "left_s", "steps"}; the sentence is empty once the run is done.
        `steps` are {"label", "share", "fraction", "is_now"}, none of a run that is over.
    """
    value: dict[str, Any] = {"state": view.state, "sentence": "", "left_s": None, "steps": []}
    if view.counts is not None:
        return value | _samples_state(view, view.counts)
    if view.state == "queued":
        ahead = view.queue_ahead
        are = "1 run is" if ahead == 1 else f"{ahead} runs are"
        sentence = view.reason or "Waiting: this run starts next."
        if ahead:
            sentence = f"Waiting: {are} ahead of this one. It starts by itself."
        return value | {"sentence": sentence, "steps": _steps(view, None)}
    if view.state in ("failed", "cancelled"):
        return value | {"sentence": view.reason or view.state.capitalize()}
    if view.is_final:
        return value
    progress = view.progress
    return value | {
        "sentence": _sentence(view, progress),
        "left_s": _seconds_left(view, progress, now),
        "steps": _steps(view, progress),
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


def _samples_state(view: RunSnapshot, counts: ResultCounts) -> dict[str, Any]:
    sentence = "" if view.state == "done" else progress_sentence(view, counts)
    if view.is_final or view.pace is None:
        return {"sentence": sentence}
    done = view.pace.done / max(1, view.pace.total)
    step = {"label": "", "share": 1.0, "fraction": done, "is_now": True}
    return {"sentence": sentence, "steps": [step]}


def _sentence(view: RunSnapshot, progress: Progress | None) -> str:
    if view.state == "stopping":
        return "Stopping."
    if progress is None:
        return view.reason or "Starting."
    if progress.stage == "load":  # whose details are sentences
        return progress.detail or "Loading the model."
    doing = next(doing for _, doing, stages, _ in STEPS if progress.stage in stages)
    if progress.stage != "decode":
        return f"{doing}{_detail(progress)}."
    methods = [each for each in view.result.variants if each.method != "full"]
    done = sum(each.stopped is not None for each in methods)
    have = "method has" if len(methods) == 1 else "methods have"
    return f"{doing}: {done} of {len(methods)} {have} finished."


def _detail(progress: Progress) -> str:
    return f": {progress.detail}" if progress.detail else ""


def _steps(view: RunSnapshot, progress: Progress | None) -> list[dict[str, Any]]:
    """The steps that this run has, each with how far it is."""
    shown = []
    for label, _, stages, share in STEPS:
        if stages == ("analyse",) and not (view.request.analysis or view.request.follow_ups):
            continue
        if stages == ("time",) and not view.request.time:
            continue
        is_now = progress is not None and progress.stage in stages
        detail = progress.detail if is_now and progress and progress.stage != "load" else ""
        word = f"{label}, {detail}" if detail else label
        step = {"label": word, "share": share, "is_now": is_now}
        shown.append(step | {"fraction": _fraction(stages, progress, view.stage_ms)})
    return shown


def _fraction(
    stages: tuple[Stage, ...], progress: Progress | None, done_ms: Mapping[str, float]
) -> float:
    """Of one step, 0 to 1; of two stages the second has most of the work."""
    if progress is None:
        return 0.0
    place = STAGES.index(progress.stage)
    if progress.stage in stages:
        known = progress.fraction or 0.0
        is_first = len(stages) > 1 and progress.stage == stages[0]
        return 0.3 * known if is_first else known if len(stages) == 1 else 0.3 + 0.7 * known
    is_past = STAGES.index(stages[-1]) < place or stages[-1] in done_ms
    return 1.0 if is_past else 0.0


def _seconds_left(view: RunSnapshot, progress: Progress | None, now: datetime) -> float | None:
    """About how long; None while too little has passed, or where another process runs it."""
    if view.started_at is None or progress is None:
        return None
    elapsed = (now - view.started_at).total_seconds()
    steps = _steps(view, progress)
    whole = sum(step["share"] for step in steps)
    done = sum(step["share"] * step["fraction"] for step in steps) / whole
    last = "time" if view.request.time else "decode"
    if progress.stage == last and progress.fraction:
        # What came before may have been reused, so it says nothing of the rest.
        elapsed -= sum(view.stage_ms.values()) / 1000
        done = progress.fraction
    return elapsed * (1 - done) / done if done > _LEAST_PART and elapsed > 0 else None


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
    "variants": "the methods' caches",
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
    if view.counts is not None:
        counts = view.counts
        crumbs.append(f"{counts.samples:,} samples, {counts.points} results each")
    return {"title": view.title, "crumbs": crumbs, "answer": view.request.answer}


def verdict_value(snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Value of the VerdictStrip; None until the run is over, and where nothing came out."""
    verdict = verdict_of(snapshot.result) if snapshot.is_final else None
    return verdict.to_json() if verdict else None


def actions_value(view: RunSnapshot, *, may_change: bool) -> dict[str, Any]:
    """Value of the RunActions; what takes the whole run along waits for its end."""
    result, is_of_many = view.result, view.counts is not None
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
                "label": names[index] + _no_tokens(variant),
                "spec": variant.spec,
                "method": variant.method,
                "critical": variant.critical,
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


def _no_tokens(variant: VariantResult) -> str:
    """What a map adds to the name of a method whose entries are no tokens."""
    method = METHODS.by_name.get(variant.method)
    return "" if method is None or method.store.of_tokens else " (no tokens: whose keys it has)"


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
        ("Answer begins with", request.answer_prefix or "nothing given"),
        ("Scenario", request.scenario),
        ("Protected text", "\n".join(request.protect) or "none"),
        ("Methods", "\n".join([*request.variants, *map(str, request.own_indices)])),
        ("Settings for all", ", ".join(f"{k}={v}" for k, v in settings.items() if v) or "none"),
        ("New tokens", f"up to {request.max_new_tokens}{'; ignores EOS' * request.ignore_eos}"),
        ("Sampled texts", request.repeats or "none"),
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
        return f"{used:,} of {wanted:,} requested entries in every method that evicts"
    off = sum(each.retained_entries != each.requested_entries for each in receipts)
    if not off:
        return "every method kept what was requested"
    return f"{off} of {len(receipts)} receipts differ from the request"


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
                f"entries, {human_bytes(receipt.cache_bytes)}{_read(receipt)}"
                f"{_peaks(variant.memory)}"
            )
    return "\n".join(lines)


def _read(receipt: Receipt) -> str:
    """What a step reads, where that is less than what is held."""
    read = receipt.read_bytes
    if read is None or read >= receipt.cache_bytes:
        return ""
    return f", of which a step reads {human_bytes(read)}"


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


# --- charts -----------------------------------------------------------------------------

WAITING = "The charts appear here once every method is measured."
CURVES_WAITING = "The curves appear here once every point is measured."
NO_REFERENCE = "This run left the full cache out, so nothing is measured against it."
OVER = "Nothing was measured before this run ended."


def perturbation_value(snapshot: RunSnapshot) -> dict[str, Any]:
    """Value of the Perturbation charts; without charts it says why."""
    names = PERTURBATION if _is_measured(snapshot) else ()
    text = OVER if snapshot.is_final else WAITING
    text = text if snapshot.request.reference else NO_REFERENCE
    return _value(snapshot, [CHARTS[name] for name in names], text=text)


def memory_value(snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Value of the chart of memory; None where no variant reads the prompt in blocks."""
    value = _value(snapshot, [CHARTS[MEMORY]], text="")
    return value if value["charts"] else None


def diagnostics_value(snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Value of the diagnostics's charts; None where the run has no such data."""
    if not _is_measured(snapshot) or not _has_bounds(snapshot):
        return None
    charts = [CHARTS[name] for name in DIAGNOSTICS]
    return _value(snapshot, charts, text="")


def curves_value(snapshot: RunSnapshot) -> dict[str, Any]:
    """Value of a sweep's curves; without charts it says why."""
    text = OVER if snapshot.is_final else CURVES_WAITING
    return _value(snapshot, SWEEP_CURVES if is_swept(snapshot) else (), text=text)


def several_value(slugs: str, found: Points) -> dict[str, Any]:
    """Value of the chart of several runs, named with commas."""
    return {
        "slug": slugs,
        "base": "/several",
        "file": "several-runs",
        "key": slugs,
        "text": "No method has two budgets of one unit, so there is no curve.",
        "head": "",
        "charts": chart_values([POINTS_CHART], found),
    }


def is_swept(snapshot: RunSnapshot) -> bool:
    """Every point of a sweep has been measured, or it has ended with what it had."""
    return snapshot.request.kind == "sweep" and _is_measured(snapshot)


def _value(
    snapshot: RunSnapshot, charts: Sequence[Chart[RunResult]], *, text: str
) -> dict[str, Any]:
    return {
        "slug": snapshot.slug,
        "base": "/data",
        # Charts are drawn again when it changes, so it moves in few steps.
        "key": f"{_is_measured(snapshot):d}{_has_bounds(snapshot):d}{snapshot.is_final:d}",
        "text": text,
        "head": run_regimes(snapshot.result).head,
        "charts": chart_values(charts, snapshot.result),
    }


def _is_measured(snapshot: RunSnapshot) -> bool:
    """Every variant that evicts has been measured, or the run has ended with what it had."""
    waiting = [v.perturbation is None for v in snapshot.result.variants if v.method != "full"]
    return bool(waiting) and not all(waiting) and (snapshot.is_final or not any(waiting))


def _has_bounds(snapshot: RunSnapshot) -> bool:
    """The same for the diagnostics's arrays."""
    waiting = ["theta" not in v.analysis for v in snapshot.result.variants if v.method != "full"]
    return bool(waiting) and not all(waiting) and (snapshot.is_final or not any(waiting))
