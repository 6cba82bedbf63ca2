"""The endpoints of ui/api/api.py as plain JSON routes.

POST and GET /api/runs, POST /api/sweeps, GET /api/runs/SLUG, POST /api/runs/SLUG/cancel.
"""

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
from ui.accounts.access import AccessError
from ui.api.api import Api
from ui.limits import LimitError
from ui.server.route_answers import NO_STORE

STATUSES: dict[type[CkvError], int] = {
    ConfigError: 400,
    PromptError: 400,
    AccessError: 403,
    RunMissingError: 404,
    LimitError: 429,
}
Answer = tuple[Any, int]  # what is sent as JSON, and the status
NO_OBJECT = 'Send a JSON object with the arguments, such as {"context": "a long text"}.'


def api_routes(api: Api) -> list[Route]:
    """All routes; the guard in front of them knows who asks."""

    async def compare(request: Request) -> Answer:
        given = _read_object(await request.body())
        return await asyncio.to_thread(_call, api.compare, given), 202

    async def sweep(request: Request) -> Answer:
        given = _read_object(await request.body())
        return await asyncio.to_thread(_call, api.sweep, given), 202

    async def list_runs(request: Request) -> Answer:
        given = _read_query(request, api.list_runs)
        return await asyncio.to_thread(_call, api.list_runs, given), 200

    async def get_run(request: Request) -> Answer:
        given = _read_query(request, api.get_run)
        return await _call(api.get_run, given | request.path_params), 200

    async def cancel(request: Request) -> Answer:
        given = _read_query(request, api.cancel)
        answer = await asyncio.to_thread(_call, api.cancel, given | request.path_params)
        return answer, 200 if answer["over"] else 202

    return [
        Route("/api/runs", _answering(compare), methods=["POST"]),
        Route("/api/runs", _answering(list_runs)),
        Route("/api/sweeps", _answering(sweep), methods=["POST"]),
        Route("/api/runs/{slug}", _answering(get_run)),
        Route("/api/runs/{slug}/cancel", _answering(cancel), methods=["POST"]),
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
    handle: Callable[[Request], Awaitable[Answer]],
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            content, status = await handle(request)
            return JSONResponse(content, status, headers=NO_STORE)
        except CkvError as error:
            codes = [code for kind, code in STATUSES.items() if isinstance(error, kind)]
            return JSONResponse({"error": str(error)}, codes[0] if codes else 503, headers=NO_STORE)

    return answer
