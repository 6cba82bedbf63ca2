"""The endpoints of ui/api.py as plain JSON routes: POST and GET /api/runs, GET /api/runs/SLUG."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError, ConfigError, PromptError
from storage.repository import RunMissingError
from ui.access import AccessError
from ui.api import Api
from ui.limits import LimitError

NO_STORE = {"Cache-Control": "no-store"}
STATUSES: dict[type[CkvError], int] = {
    ConfigError: 400,
    PromptError: 400,
    AccessError: 403,
    RunMissingError: 404,
    LimitError: 429,
}
NO_OBJECT = 'Send a JSON object with the arguments, such as {"context": "a long text"}.'


def api_routes(api: Api) -> list[Route]:
    """All routes; the guard in front of them knows who asks."""

    async def compare(request: Request) -> Any:
        return await asyncio.to_thread(_call, api.compare, _read_object(await request.body()))

    async def list_runs(request: Request) -> Any:
        given = _read_query(request, api.list_runs)
        return await asyncio.to_thread(_call, api.list_runs, given)

    async def get_run(request: Request) -> Any:
        given = _read_query(request, api.get_run)
        return await _call(api.get_run, given | {"slug": request.path_params["slug"]})

    return [
        Route("/api/runs", _answering(compare, 202), methods=["POST"]),
        Route("/api/runs", _answering(list_runs)),
        Route("/api/runs/{slug}", _answering(get_run)),
    ]


def _call(method: Callable[..., Any], given: dict[str, Any]) -> Any:
    """The method with arguments by name."""
    parameters = inspect.signature(method).parameters
    for name in given:
        if name not in parameters:
            raise ConfigError(f"{name[:40]!r} is no argument; known are {', '.join(parameters)}.")
    for name, parameter in parameters.items():
        if name not in given and parameter.default is parameter.empty:
            raise ConfigError(f"{name} is missing.")
    return method(**given)


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ConfigError(NO_OBJECT)
    return given


def _read_query(request: Request, method: Callable[..., Any]) -> dict[str, Any]:
    """The query's values, as numbers where the method takes numbers."""
    parameters = inspect.signature(method).parameters
    given: dict[str, Any] = dict(request.query_params)
    for name, text in given.items():
        kind = parameters[name].annotation if name in parameters else str
        if kind in (int, float):
            try:
                given[name] = kind(text)
            except ValueError:
                raise ConfigError(f"{name} must be a number.") from None
    return given


def _answering(
    handle: Callable[[Request], Awaitable[Any]], status: int = 200
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return JSONResponse(await handle(request), status, headers=NO_STORE)
        except CkvError as error:
            codes = [code for kind, code in STATUSES.items() if isinstance(error, kind)]
            return JSONResponse({"error": str(error)}, codes[0] if codes else 503, headers=NO_STORE)

    return answer
