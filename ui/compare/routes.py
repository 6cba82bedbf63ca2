"""Routes of the Compare page: text out of a document, and the app's own example run."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ui.compare.documents import read_document
from ui.compare.examples import example_value
from ui.server.route_answers import NO_STORE, import_route
from ui.services.services import Services


def compare_routes(services: Services) -> list[Route]:
    """Both; the guard in front of them knows who asks and caps what is sent."""

    def example(_: Request) -> Response:
        run = services.example
        value = example_value(run.view()) if run.is_expected else None
        return JSONResponse(value, headers=NO_STORE)

    return [import_route("/documents/text", read_document), Route("/example", example)]
