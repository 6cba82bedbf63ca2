"""Routes of kept caches: one as a file, and one from a file."""

from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from ui.server.route_answers import IMPORT_TYPE, NO_STORE, import_route
from ui.services.services import Services


def cache_routes(services: Services) -> list[Route]:
    """Both; the guard in front of them knows who asks and caps what is sent."""

    def file(request: Request) -> Response:
        path = services.caches.path(request.query_params.get("name", ""))
        name = path.name.replace(" ", "-")
        return FileResponse(path, headers=NO_STORE, media_type=IMPORT_TYPE, filename=name)

    def take(name: str, data: bytes) -> dict[str, Any]:
        services.caches.add(name, data)
        return {"message": f"{name} is kept."}

    return [Route("/caches/file", file), import_route("/caches/import", take)]
