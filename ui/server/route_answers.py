"""What our own HTTP routes read and answer alike: indices, files, how long a thing may be kept."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

NO_STORE = {"Cache-Control": "no-store"}
# For what never changes. A login may stand before it, so no shared cache may keep it.
IMMUTABLE = {"Cache-Control": "private, max-age=31536000, immutable"}
CSV = "text/csv; charset=utf-8"
# No form of another site can send this type, and no script can unless the app allows it.
IMPORT_TYPE = "application/octet-stream"
NO_RUN = "There is no run of this name."
UNKNOWN_RUN = "There is no run of this name; see the list of runs for those that are saved."


def missing(sentence: str) -> PlainTextResponse:
    """A 404; a browser gets the page of ui/shell/plain_pages.py around the sentence."""
    return PlainTextResponse(sentence, 404, headers=NO_STORE)


def as_file(
    name: str, data: str | bytes, kind: str, caching: Mapping[str, str] = NO_STORE
) -> Response:
    """What a browser saves under this name.

    Args:
        name: ASCII without quotes.
        data: the file; text is sent as UTF-8.
        kind: its media type.
        caching: headers that say how long it may be kept.
    """
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, 200, {**caching, **disposition}, kind)


def give_cookie(
    answer: Response, request: Request, name: str, value: str, max_age: int | None = None
) -> None:
    """No script reads it and no form of another site sends it; without an age for one session."""
    is_https = request.url.scheme == "https"
    answer.set_cookie(name, value, max_age, secure=is_https, httponly=True, samesite="lax")


def read_index(text: str) -> int:
    """A variant's index out of an address; -1, which no variant has, for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else -1
