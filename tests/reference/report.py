"""One of the app's examples, a long plausible report, and a question about it."""

from pathlib import Path

QUESTION, ANSWER = "What is the access code for pump house 4?", "5829"
_EXAMPLE = Path(__file__).parents[2] / "assets" / "examples" / "harbour_report.txt"


def report() -> str:
    """The report's text, the same at every call."""
    return _EXAMPLE.read_text(encoding="utf-8")
