"""Values of the RunCharts components: which charts a run has now. No Gradio, no clock."""

from typing import Any

from ui.charts.catalog import LABORATORY, PERTURBATION, chart_values
from ui.live_runs import RunSnapshot

WAITING = "The charts appear here once every variant is measured."
OVER = "Nothing was measured before this run ended."
LABORATORY_TEXT = (
    "The paper's quantities on this prompt: which heads CriticalKV improves, what an oracle that "
    "sees the true attention would reach, whether stage 1 holds enough attention for the theory, "
    "and how the bounds stand above the measured distance. n is the heads of one prompt at one "
    "decoding step; the Sweep page and the command line take more."
)


def perturbation_value(snapshot: RunSnapshot) -> dict[str, Any]:
    """Value of the Perturbation charts; without charts it says why."""
    text = OVER if snapshot.is_final else WAITING
    return _value(snapshot, PERTURBATION if _is_measured(snapshot) else (), text=text)


def laboratory_value(snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Value of the laboratory's charts; None where the run has no such data."""
    if not _is_measured(snapshot) or not _has_bounds(snapshot):
        return None
    return _value(snapshot, LABORATORY, heading="Laboratory", text=LABORATORY_TEXT)


def _value(
    snapshot: RunSnapshot, names: tuple[str, ...], *, heading: str = "", text: str
) -> dict[str, Any]:
    result = snapshot.result
    return {
        "slug": snapshot.slug,
        "base": "/data",
        # Charts are drawn anew when it changes, so it moves in few steps.
        "key": f"{_is_measured(snapshot):d}{_has_bounds(snapshot):d}{snapshot.is_final:d}",
        "heading": heading,
        "text": text,
        "charts": chart_values(result, names),
    }


def _is_measured(snapshot: RunSnapshot) -> bool:
    """Every variant that evicts has been measured, or the run has ended with what it had."""
    waiting = [v.perturbation is None for v in snapshot.result.variants if v.method != "full"]
    return bool(waiting) and not all(waiting) and (snapshot.is_final or not any(waiting))


def _has_bounds(snapshot: RunSnapshot) -> bool:
    """The same for the laboratory's arrays."""
    waiting = ["theta" not in v.analysis for v in snapshot.result.variants if v.method != "full"]
    return bool(waiting) and not all(waiting) and (snapshot.is_final or not any(waiting))
