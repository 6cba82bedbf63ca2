"""What a reader sees at an address that shows nothing: one sentence and where to go instead."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.accounts.access import SCOPE_KEY
from ui.server.identity import navigates
from ui.shell.plain_pages import plain_page

NO_PAGE = "There is no page at this address."


class MissingPages:
    """ASGI middleware: a 404 is a page for whoever navigates; programs get what they got."""

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
