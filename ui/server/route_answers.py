"""What our own HTTP routes answer alike: how long it may be kept, files, and what is not there."""

from collections.abc import Mapping

from starlette.responses import PlainTextResponse, Response

NO_STORE = {"Cache-Control": "no-store"}
# For what never changes. A login may stand before it, so no shared cache may keep it.
IMMUTABLE = {"Cache-Control": "private, max-age=31536000, immutable"}
CSV = "text/csv; charset=utf-8"
# No form of another site can send this type, and no script can without being asked for first.
IMPORT_TYPE = "application/octet-stream"
NO_RUN = "There is no run of this name."


def missing(sentence: str) -> PlainTextResponse:
    """A 404; whoever navigates gets the page of ui/shell/missing.py around the sentence."""
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
