"""How far a study is and what it costs, in words. No Gradio."""

from ckv_core.studies.runner import Cost
from ui.services.studies import StudyView


def progress_sentence(view: StudyView) -> str:
    """How far it is, what it does now, and why it stopped."""
    counts = view.stored.counts
    told = [f"{counts.samples:,} samples x {counts.points} points", counts.sentence]
    if counts.failed_for_good:
        told.append(f"{counts.failed_for_good:,} of them each time")
    now = view.progress
    if now is not None and now.sample:
        told.append(f"last sample {now.sample}")
    if now is not None and now.seconds_left is not None:
        told.append(f"about {duration(now.seconds_left)} left")
    ends = " What a cluster works at ends first." if view.state == "stopping" else ""
    return f"{view.state.capitalize()}: {', '.join(told)}. {view.stored.reason}{ends}".rstrip()


def cost_sentence(cost: Cost) -> str:
    """What a study takes, before it starts."""
    return (
        f"{cost.samples:,} samples x {cost.points // max(1, cost.samples)} points, about "
        f"{cost.tokens:,} prompt tokens (the longest prompt {cost.longest:,}): about "
        f"{duration(cost.seconds)}, estimated from the default model's times on two CPU cores."
    )


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
