"""How far a run is, in the place of its verdict: one sentence, and one bar over all stages."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ckv_core.records.events import STAGES, Progress, Stage
from ckv_core.records.grid import duration
from storage.records import ResultCounts
from ui.services.live_runs import RunSnapshot

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
    if view.study is not None:
        return value | _samples_state(view, view.study.counts)
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
    if progress.stage == "load":
        return f"Loading the model{_detail(progress)}."
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
        word = f"{label}, {progress.detail}" if is_now and progress and progress.detail else label
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
