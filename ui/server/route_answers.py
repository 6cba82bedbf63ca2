"""What our own HTTP routes say alike: how long an answer may be kept, and what is not there."""

from starlette.responses import PlainTextResponse

NO_STORE = {"Cache-Control": "no-store"}
# For what never changes. A login may stand before it, so no shared cache may keep it.
IMMUTABLE = {"Cache-Control": "private, max-age=31536000, immutable"}
NO_RUN = "There is no run of this name."


def missing(sentence: str) -> PlainTextResponse:
    """A 404; whoever navigates gets the page of ui/shell/missing.py around the sentence."""
    return PlainTextResponse(sentence, 404, headers=NO_STORE)
