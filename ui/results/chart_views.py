"""Values of the RunCharts components: which charts a run has now. No Gradio, no clock."""

from collections.abc import Sequence
from typing import Any

from ckv_core.experiment.points import Points
from ckv_core.experiment.regimes import run_regimes
from ckv_core.records.events import RunResult
from ui.charts.catalog import CHARTS, DIAGNOSTICS, MEMORY, PERTURBATION, SWEEP_CURVES
from ui.charts.layout import Chart, chart_values
from ui.charts.points import POINTS_CHART
from ui.services.live_runs import RunSnapshot

WAITING = "The charts appear here once every variant is measured."
CURVES_WAITING = "The curves appear here once every point is measured."
NO_REFERENCE = "This run left the full cache out, so nothing is measured against it."
OVER = "Nothing was measured before this run ended."
DIAGNOSTICS_TEXT = (
    "The paper's quantities on this prompt: what an oracle that sees the true attention would "
    "reach, whether stage 1 holds enough attention for the theory "
    "([[sigma]] over one half), and how the bounds ([[theta]]) stand above the measured distance. "
    "n is the heads of one prompt at one decoding step; several budgets take more."
)


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
    return _value(snapshot, charts, heading="Diagnostics", text=DIAGNOSTICS_TEXT)


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
        "heading": "",
        "text": "No method has two budgets of one unit, so there is no curve.",
        "head": "",
        "charts": chart_values([POINTS_CHART], found),
    }


def is_swept(snapshot: RunSnapshot) -> bool:
    """Every point of a sweep has been measured, or it has ended with what it had."""
    return snapshot.request.kind == "sweep" and _is_measured(snapshot)


def _value(
    snapshot: RunSnapshot, charts: Sequence[Chart[RunResult]], *, heading: str = "", text: str
) -> dict[str, Any]:
    return {
        "slug": snapshot.slug,
        "base": "/data",
        # Charts are drawn again when it changes, so it moves in few steps.
        "key": f"{_is_measured(snapshot):d}{_has_bounds(snapshot):d}{snapshot.is_final:d}",
        "heading": heading,
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
