"""Saved runs side by side."""

from ui.components.base import component

RunDifferences = component(__file__, "run_differences")
"""Shows what `ui.compare_runs.differences.differences_value` gives; nothing for None."""
