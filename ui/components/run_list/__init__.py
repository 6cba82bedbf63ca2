"""The list of saved runs."""

from ui.components.base import component

RunList = component(__file__, "run_list")
"""Shows a view of the Runs page; triggers `act` with {action, slugs, query, ...}."""
