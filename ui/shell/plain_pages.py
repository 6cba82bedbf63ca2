"""Pages without Gradio, in the look of the app: the login, forms, what there is not.

They work without scripts; the only one picks dark or light. Templates are in assets/pages/ and
escape what they are given.
"""

import functools
from datetime import datetime

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.accounts.access import SCOPE_KEY, Viewer
from ui.looks.theme import ASSETS
from ui.server.identity import navigates
from ui.server.route_answers import NO_STORE
from ui.shell.header import TITLE, header_html, user_html

NO_PAGE = "There is no page at this address."


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
    page = _templates().get_template(f"{name}.html")
    text = page.render({"message": "", "done": ""} | values, title=title, app=TITLE, header=header)
    return HTMLResponse(text, status, NO_STORE)


@functools.cache
def _templates() -> Environment:
    folder = FileSystemLoader(ASSETS / "pages")
    pages = Environment(loader=folder, autoescape=True, undefined=StrictUndefined)
    style = ((ASSETS / f"{name}.css").read_text("utf-8") for name in ("app", "components", "plain"))
    pages.globals["style"] = "".join(style)
    pages.filters |= {"utc": _utc, "mib": _mib}
    return pages


def _utc(at: datetime | None, never: str = "never") -> str:
    return f"{at:%Y-%m-%d %H:%M}" if at else never


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"


class MissingPages:
    """ASGI middleware: a 404 is a page for a browser that navigates; programs get it plain."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the app does, but for a reader's 404; a sentence of ours stays."""
        if scope["type"] != "http" or not navigates(scope):
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        sentence = bytearray()

        async def send_page(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] == 404:
                start = message
                return
            if start is None:
                await send(message)
                return
            sentence.extend(message.get("body", b""))
            if not message.get("more_body"):
                is_ours = Headers(raw=start["headers"]).get("content-type", "")
                text = sentence.decode() if is_ours.startswith("text/plain") else NO_PAGE
                page = plain_page(
                    "missing", "Not found", scope.get(SCOPE_KEY), status=404, sentence=text
                )
                await page(scope, receive, send)

        await self._app(scope, receive, send_page)
