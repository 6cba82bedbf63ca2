"""Our HTTP routes share what they read and answer: runs, indices, files, refusals, caching."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError
from storage.repository import is_slug
from ui.accounts.access import AccessError
from ui.accounts.turns import LINE_KEY, Line

T = TypeVar("T")
Answer = Callable[[T, Request], Response | None]
NO_STORE = {"Cache-Control": "no-store"}
# For what never changes. A login may stand before it, so no shared cache may keep it.
IMMUTABLE = {"Cache-Control": "private, max-age=31536000, immutable"}
CSV = "text/csv; charset=utf-8"
# No form of another site can send this type, and no script can unless the app allows it.
IMPORT_TYPE = "application/octet-stream"
IMPORTS = 2  # files that are read at a time, of all viewers
NO_RUN = "There is no run of this name."
NOT_YET = "This run has no such data yet."
UNKNOWN_RUN = "There is no run of this name; it may have been deleted."


class MissingError(CkvError):
    """Nothing is at an address; ui/shell/plain_pages.py makes each CkvError of a route a 404."""


def routes_of(
    base: str, read: Callable[[Request], T], answers: Mapping[str, Answer[T]]
) -> list[Route]:
    """Routes for GET below `base`, which share what they answer about.

    `read` finds that for each request again, as it may no longer be shared, or raises CkvError;
    `answers` are by the rest of the address, and None where there is no such data yet.
    """

    def route(path: str, answer: Answer[T]) -> Route:
        def handle(request: Request) -> Response:
            response = answer(read(request), request)
            if response is None:
                raise MissingError(NOT_YET)
            return response

        return Route(f"{base}/{path}", handle)

    return [route(path, answer) for path, answer in answers.items()]


def import_route(path: str, take: Callable[[str, bytes], dict[str, Any]]) -> Route:
    """A route that takes one file at a time, and reports in JSON what became of it.

    `take` is given the name in the query and the file; it returns the report or raises CkvError.
    """
    # Each may take much memory and time; who waits takes no thread that others need, and one
    # viewer's leave room for another's.
    of_all = anyio.CapacityLimiter(IMPORTS)
    of_one: WeakKeyDictionary[Line, anyio.CapacityLimiter] = WeakKeyDictionary()

    async def handle(request: Request) -> Response:
        if request.headers.get("content-type") != IMPORT_TYPE:
            return JSONResponse({"message": f"Send the file as {IMPORT_TYPE}."}, 415, NO_STORE)
        given = request.query_params.get("name", ""), await request.body()
        own = of_one.setdefault(request.scope[LINE_KEY], anyio.CapacityLimiter(1))
        try:
            async with own:
                report = await anyio.to_thread.run_sync(take, *given, limiter=of_all)
        except CkvError as error:
            return refused_as_json(error)
        return JSONResponse(report, headers=NO_STORE)

    return Route(path, handle, methods=["POST"])


def refused_as_json(error: CkvError) -> JSONResponse:
    """A refusal as the scripts of our pages read it."""
    status = 403 if isinstance(error, AccessError) else 400
    return JSONResponse({"message": str(error)}, status, NO_STORE)


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


def read_slug(request: Request) -> str:
    """The run that an address names; MissingError where that can be none."""
    slug = request.path_params["slug"]
    if not is_slug(slug):
        raise MissingError(NO_RUN)
    return str(slug)
