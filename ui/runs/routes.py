"""Routes of the list of runs: import a file, export chosen runs as one bundle."""

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ckv_core.errors import CkvError, StorageError
from ui.runs.query import read_slugs
from ui.server.route_answers import IMPORT_TYPE, NO_STORE, as_file
from ui.services.services import Services


def library_routes(services: Services) -> list[Route]:
    """All routes; the guard in front of them knows who asks and caps what is sent."""
    # Each may take much memory and time; who waits takes no thread that others need.
    one_import = anyio.CapacityLimiter(1)

    async def import_file(request: Request) -> Response:
        if request.headers.get("content-type") != IMPORT_TYPE:
            return JSONResponse({"message": f"Send the file as {IMPORT_TYPE}."}, 415, NO_STORE)
        data = await request.body()
        try:
            report = await anyio.to_thread.run_sync(
                services.import_bundle, data, limiter=one_import
            )
        except CkvError as error:
            return _refused(error)
        return JSONResponse(
            {"message": report.sentence, "imported": report.imported}, 200, NO_STORE
        )

    def export(request: Request) -> Response:
        try:
            slugs = read_slugs(request.query_params.get("ids", "").split(","))
            data = services.export_bundle(slugs)
        except CkvError as error:
            return _refused(error)
        name = f"ckv-{slugs[0]}.zip" if len(slugs) == 1 else f"ckv-{len(slugs)}-runs.zip"
        return as_file(name, data, "application/zip")

    return [Route("/runs/import", import_file, methods=["POST"]), Route("/runs/export", export)]


def _refused(error: CkvError) -> JSONResponse:
    status = 400 if isinstance(error, StorageError) else 403
    return JSONResponse({"message": str(error)}, status, NO_STORE)
