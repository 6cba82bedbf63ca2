"""Progress of a run: stages, fraction, queue, what happened."""

from ui.components.base import component

StatusBar = component(__file__, "status_bar")
"""Shows how far a run is; hidden while the value is None.

The value is {"state", "stage", "stages", "fraction", "detail", "reason", "queue_ahead",
"elapsed_s", "chips"}.
`state` is idle, queued, running, done, failed or cancelled; `stages` is a list of
{"name", "label", "state": "waiting" | "active" | "done", "ms": number or None};
`fraction` is of the active stage, 0 to 1, None where unknown.
"""
