"""What came out of a run, in sentences, above everything else of it."""

from ui.components.base import ScriptedHtml


class VerdictStrip(ScriptedHtml):
    """Shows {"headline", "groups", "findings", "cautions"}; nothing while the value is None.

    `groups` is a list of {"state", "label", "variants": [{"name", "note", "look"}]} with state
    "kept", "lost" or "cut"; the rest are sentences.
    """

    NAME = "verdict"
    SCRIPTS = ("verdict.js",)
