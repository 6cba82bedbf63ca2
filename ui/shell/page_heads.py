"""What we put in the head of each page of Gradio's: title, scripts, the user."""

import html
import json
from collections.abc import Callable
from functools import cache
from urllib.parse import quote

import anyio.to_thread
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ckv_core.errors import CkvError
from storage.repository import RunMissingError, is_slug
from ui.accounts.access import SCOPE_KEY
from ui.components.modules import address, preloads
from ui.looks.glossary import words
from ui.server.private import with_head
from ui.server.route_answers import NO_STORE, UNKNOWN_RUN
from ui.services.services import Services
from ui.shell.header import PAGES, THEME_SCRIPT, TITLE, USER_TEMPLATE, user_html
from ui.shell.plain_pages import missing_page

# What makes leaving a page quiet and loses no draft, words explain themselves, updates cheap, and
# lists keys and runs that ended.
SCRIPTS = ("history", "drafts", "terms", "clones", "keys", "toasts")
JOINS_SCRIPT = "assets/scripts/pages/joins.js"
RUN_PAGE = "/run"


class PageHeads:
    """ASGI middleware: pages get their own head; the page of a run that is not there is a 404."""

    def __init__(self, app: ASGIApp, *, services: Services) -> None:
        """Add to the pages of an app inside a Gradio app."""
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the app does, but for the head of a page."""
        page = "/" + str(scope.get("path", "")).strip("/")
        is_page = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if not is_page or page not in (*PAGES, RUN_PAGE):
            await self._app(scope, receive, send)
            return
        title = PAGES.get(page)
        if title is None:
            given = QueryParams(scope["query_string"])
            slug = given.get("id", "")
            try:
                title = await anyio.to_thread.run_sync(self._title_of, slug)
            except RunMissingError:
                answer = missing_page(Request(scope), RunMissingError(UNKNOWN_RUN))
                await answer(scope, receive, send)
                return
            if "embed" in given:  # a panel alone is a page without Gradio
                address = f"/data/{slug}/embed/{quote(given['embed'], safe='')}"
                await RedirectResponse(address, 307, NO_STORE)(scope, receive, send)
                return
        user = user_html(scope.get(SCOPE_KEY))
        lines = f"<title>{html.escape(f'{title} - {TITLE}')}</title>{scripts_html()}"
        lines += f'<template id="{USER_TEMPLATE}">{user}</template>'

        def with_lines(body: bytes) -> bytes:
            return with_head(body, lines + preloads(lines + body.decode()))

        await self._app(scope, receive, rewriting(send, with_lines))

    def _title_of(self, slug: str) -> str:
        if not is_slug(slug):
            raise RunMissingError(UNKNOWN_RUN)
        try:
            summary = self._services.library.summary(slug)
        except RunMissingError:
            raise
        except CkvError:  # the page itself tells what is wrong
            return "Run"
        return summary.title or f"Run {slug}"


@cache
def scripts_html() -> str:
    """Our scripts that no component brings, and the glossary's words for them."""
    # No word can end the script early.
    glossary = json.dumps(words()).replace("<", "\\u003c")
    tags = [f'<script src="{address(THEME_SCRIPT)}"></script>']  # before anything is drawn
    tags += [f'<script src="{address(JOINS_SCRIPT)}"></script>']  # before Gradio joins its queue
    tags += [f'<script type="application/json" id="ckv-words">{glossary}</script>']
    for name in SCRIPTS:
        src = address(f"assets/scripts/pages/{name}.js")
        tags.append(f'<script type="module" src="{src}"></script>')
    return "".join(tags)


def rewriting(send: Send, rewrite: Callable[[bytes], bytes]) -> Send:
    """Send the body that `rewrite` makes, where the answer is a page in one piece."""
    start: Message | None = None

    async def send_rewritten(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message  # its length is not known yet
            return
        if start is not None:
            headers = MutableHeaders(raw=start["headers"])
            is_page = headers.get("content-type", "").startswith("text/html")
            if is_page and not message.get("more_body"):
                message = {**message, "body": rewrite(message["body"])}
                headers["content-length"] = str(len(message["body"]))
            await send(start)
            start = None
        await send(message)

    return send_rewritten
