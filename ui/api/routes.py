"""The endpoints of ui/api/endpoints.py as plain JSON routes."""

import inspect
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ckv_core.base.json_text import NoJsonError
from ckv_core.errors import CkvError, ConfigError, PromptError
from storage.repository import RunMissingError
from ui.accounts.access import AccessError
from ui.accounts.turns import in_turn
from ui.api.endpoints import Api
from ui.limits import LimitError
from ui.server.gates import BOUNDS
from ui.server.route_answers import NO_STORE

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
    return [
        _route("POST", "/api/runs", api.compare),
        _route("GET", "/api/runs", api.list_runs),
        _route("GET", "/api/runs/{slug}", api.get_run),
        _route("POST", "/api/runs/{slug}/cancel", api.cancel),
    ]


def _route(verb: str, path: str, method: Callable[..., Any]) -> Route:
    """An endpoint whose arguments are a body, or the query and the path; 202 for what goes on."""

    async def answer(request: Request) -> Response:
        try:
            has_body = verb == "POST" and "{" not in path
            given = _read_object(await request.body()) if has_body else _read_query(request, method)
            content = await _call(method, given | request.path_params)
        except CkvError as error:
            codes = [code for kind, code in STATUSES.items() if isinstance(error, kind)]
            return JSONResponse({"error": str(error)}, codes[0] if codes else 503, headers=NO_STORE)
        goes_on = verb == "POST" and not content.get("over")
        return JSONResponse(content, 202 if goes_on else 200, headers=NO_STORE)

    return Route(path, answer, methods=[verb])


async def _call(method: Callable[..., Any], given: dict[str, Any]) -> Any:
    parameters = inspect.signature(method).parameters
    for name in given:
        if name not in parameters:
            raise ConfigError(f"{name[:40]!r} is no argument; known are {', '.join(parameters)}.")
    for name, parameter in parameters.items():
        if name not in given and parameter.default is parameter.empty:
            raise ConfigError(f"{name} is missing.")
    if inspect.iscoroutinefunction(method):
        return await method(**given)
    return await in_turn(method, **given)


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        given = BOUNDS.read(body)
    except NoJsonError:
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
