"""Routes of kept caches: one as a file, and one from a file."""

from typing import Any

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError
from ui.server.route_answers import IMPORT_TYPE, NO_STORE, missing
from ui.services.services import Services


def cache_routes(services: Services) -> list[Route]:
    """Both; the guard in front of them knows who asks and caps what is sent."""
    one_import = anyio.CapacityLimiter(1)

    def file(request: Request) -> Response:
        try:
            path = services.caches.path(request.query_params.get("name", ""))
        except CkvError as error:
            return missing(str(error))
        name = path.name.replace(" ", "-")
        return FileResponse(path, headers=NO_STORE, media_type=IMPORT_TYPE, filename=name)

    async def take(request: Request) -> Response:
        if request.headers.get("content-type") != IMPORT_TYPE:
            return _message(f"Send the file as {IMPORT_TYPE}.", 415)
        data, name = await request.body(), request.query_params.get("name", "")
        try:
            await anyio.to_thread.run_sync(services.caches.add, name, data, limiter=one_import)
        except CkvError as error:
            return _message(str(error), 400)
        return _message(f"{name} is kept.", 200)

    return [Route("/caches/file", file), Route("/caches/import", take, methods=["POST"])]


def _message(sentence: str, status: int) -> JSONResponse:
    answer: dict[str, Any] = {"message": sentence}
    return JSONResponse(answer, status, NO_STORE)
