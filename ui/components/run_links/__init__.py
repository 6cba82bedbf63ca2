"""Where a run can be found and taken away."""

from ui.components.base import component

RunLinks = component(__file__, "run_links")
"""Shows the links of a run.

The value is {"slug", "kind", "files", "forced", "follow_ups", "report"}: `files` once there are
tables to export, `forced` and `follow_ups` where it has such data, `report` once the run is over.
"""
