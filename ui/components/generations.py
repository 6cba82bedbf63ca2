"""What every variant generates, side by side, while it streams."""

from ui.components.base import ScriptedHtml


class Generations(ScriptedHtml):
    """Shows {"cards", "answer"}; a friendly line while the value is None.

    `cards` is a list of {"index", "label", "spec", "status", "chips", "token_texts",
    "first_difference", "reference", "stopped", "answer"}: `first_difference` is the index of
    the first token that differs from the reference card's, `answer` is "found", "missing" or
    None. A card with `stopped` None is announced as live text while its `status` is none of
    "", waiting, queued, done, failed, cancelled.
    """

    NAME = "generations"
    SCRIPTS = ("generations.js",)
