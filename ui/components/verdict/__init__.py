"""What came out of a run, in sentences, above everything else of it."""

from ui.components.base import component

VerdictStrip = component(__file__, "verdict")
"""Shows {"headline", "regimes", "groups", "findings", "cautions"}; nothing for None.

`groups` is a list of {"state", "label", "variants": [{"name", "note", "regime", "look"}]} with
state "kept", "lost" or "cut"; the rest are sentences, empty where there is nothing to report.
"""
