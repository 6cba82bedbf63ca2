"""Routes of the list of runs: import a file, export chosen runs as one bundle."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ckv_core.errors import CkvError
from ui.runs.query import read_slugs
from ui.server.route_answers import as_file, import_route, refused_as_json
from ui.services.services import Services


def library_routes(services: Services) -> list[Route]:
    """Both; the guard in front of them knows who asks and caps what is sent."""

    def take(_: str, data: bytes) -> dict[str, Any]:
        report = services.import_bundle(data)
        return {"message": report.sentence, "imported": report.imported}

    def export(request: Request) -> Response:
        try:
            slugs = read_slugs(request.query_params.get("ids", "").split(","))
            data = services.export_bundle(slugs)
        except CkvError as error:
            return refused_as_json(error)
        name = f"ckv-{slugs[0]}.zip" if len(slugs) == 1 else f"ckv-{len(slugs)}-runs.zip"
        return as_file(name, data, "application/zip")

    return [import_route("/runs/import", take), Route("/runs/export", export)]
