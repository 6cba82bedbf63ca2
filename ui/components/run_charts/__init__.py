"""The charts of a run: each fetched and drawn when seen, with its choices and downloads."""

from ui.components.base import component

RunCharts = component(__file__, "run_charts")
"""Shows {"slug", "base", "key", "heading", "text", "head", "charts"}; hidden for None.

`head` is a sentence above the charts, or empty. `charts` is a list of {"name", "title", "csv",
"controls"}, `controls` of {"name", "label", "options"}, `options` of (value, label).
`BASE/SLUG/figure/NAME?CONTROL=VALUE` answers a Plotly figure, `BASE/SLUG/CSV.csv` its data; an
empty CSV has no link. A changed `key` draws the charts again.
Without `charts`, `text` says why.
"""
