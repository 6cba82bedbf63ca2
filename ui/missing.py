"""What a reader sees at an address that shows nothing: one sentence and where to go instead."""

import functools
import html

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.header import TITLE, header_html
from ui.route_answers import NO_STORE
from ui.theme import ASSETS

NO_PAGE = "There is no page at this address."
FOR_PROGRAMS = ("/api/", "/gradio_api/")
_HTML = "text/html"
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Not found - {title}</title>
<link rel="icon" href="/favicon.ico">
<link rel="stylesheet" href="/theme.css">
<style>{style}</style>
<script>
const theme = new URLSearchParams(location.search).get("__theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)").matches;
if (theme ? theme === "dark" : prefersDark) document.documentElement.classList.add("dark");
</script>
</head>
<body>
{header}
<main>
<h2>Not found</h2>
<p>{sentence} Go to the <a href="/runs">list of saved runs</a>, or <a href="/">compare methods</a>
on a prompt.</p>
</main>
</body>
</html>
"""


class MissingPages:
    """ASGI middleware: a 404 is a page for whoever navigates; programs get what they got."""

    def __init__(self, app: ASGIApp) -> None:
        """Add to the pages of an app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the app does, but for a reader's 404; a sentence of ours stays."""
        if not _navigates(scope):
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
                await missing_page(text)(scope, receive, send)

        await self._app(scope, receive, send_page)


def missing_page(sentence: str) -> HTMLResponse:
    """The page, in the look of the app."""
    text = html.escape(sentence)
    page = _PAGE.format(title=TITLE, style=_style(), header=header_html(""), sentence=text)
    return HTMLResponse(page, 404, NO_STORE)


def _navigates(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "GET":
        return False
    accepted = Headers(scope=scope).get("accept", "")
    return _HTML in accepted and not str(scope["path"]).startswith(FOR_PROGRAMS)


@functools.cache
def _style() -> str:
    return "".join((ASSETS / f"{name}.css").read_text("utf-8") for name in ("app", "missing"))
