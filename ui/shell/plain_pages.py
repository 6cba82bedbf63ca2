"""Pages without Gradio, in the look of the app: the login, forms, what there is not.

They work without scripts; the only one is of the theme. Templates are in assets/pages/ and
escape what they are given.
"""

import functools
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ckv_core.base.memory_line import human_bytes
from ckv_core.errors import CkvError
from ui.accounts.access import SCOPE_KEY, Viewer
from ui.accounts.turns import OverError
from ui.components.modules import modules
from ui.looks.theme import ASSETS
from ui.server.gates import busy_answer
from ui.server.identity import navigates
from ui.server.route_answers import NO_STORE
from ui.shell.header import THEME_SCRIPT, TITLE, header_html, user_html

NO_PAGE = "There is no page at this address."
BUSY_STATUS = 503
_OWN = ("content-type", "content-length")


def plain_page(
    name: str,
    title: str,
    viewer: Viewer | None,
    *,
    status: int = 200,
    **values: object,
) -> HTMLResponse:
    """The template of this name in assets/pages/; a viewer of None, nobody, gets no links."""
    header = header_html("", user=user_html(viewer), with_links=viewer is not None)
    shared = {
        "theme": modules()[THEME_SCRIPT],
        "title": title,
        "app": TITLE,
        "header": header,
        "viewer": viewer,
    }
    text = _templates().get_template(f"{name}.html").render({"message": ""} | values, **shared)
    return HTMLResponse(text, status, NO_STORE)


@functools.cache
def _templates() -> Environment:
    folder = FileSystemLoader(ASSETS / "pages")
    pages = Environment(loader=folder, autoescape=True, undefined=StrictUndefined)
    style = ((ASSETS / f"{name}.css").read_text("utf-8") for name in ("app", "components", "plain"))
    pages.globals["style"] = "".join(style)
    pages.filters |= {"utc": lambda at, never="never": f"{at:%Y-%m-%d %H:%M}" if at else never}
    pages.filters["bytes"] = human_bytes
    return pages


def missing_page(request: Request, error: Exception) -> Response:
    """Answers 404: a page around the sentence for a browser that navigates, programs get it plain.

    `error` is a CkvError of one of our routes, or Gradio's own HTTPException.
    """
    is_ours = isinstance(error, CkvError)
    if navigates(request.scope):
        viewer, sentence = request.scope.get(SCOPE_KEY), str(error) if is_ours else NO_PAGE
        return plain_page("missing", "Not found", viewer, status=404, sentence=sentence)
    if is_ours:
        return PlainTextResponse(str(error), 404, NO_STORE)
    return JSONResponse({"detail": getattr(error, "detail", "")}, 404)


class BusyPages:
    """ASGI middleware: a browser that navigates gets a page around the sentence of a 503."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not navigates(scope):
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def send_page(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and message["status"] == BUSY_STATUS:
                start = message
            elif start is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body"):
                    await _busy_page(scope, body.decode(), start)(scope, receive, send)

        await self._app(scope, receive, send_page)


def _busy_page(scope: Scope, sentence: str, start: Message) -> Response:
    """A page with the headers that the plain answer has."""
    viewer = scope.get(SCOPE_KEY)
    page = plain_page("busy", "Not available", viewer, status=BUSY_STATUS, sentence=sentence)
    page.headers.update({k: v for k, v in Headers(raw=start["headers"]).items() if k not in _OWN})
    return page


# What an app answers where its routes raise these.
REFUSALS: Any = {404: missing_page, CkvError: missing_page, OverError: busy_answer}
