"""Gradio's scripts and styles: kept packed in memory, and named ahead in the head of each page.

Without the names a browser finds each layer of scripts only once the layer before has run. The
head also holds HEAD_SCRIPTS: what makes Gradio's updates cheaper, and leaving a page quiet.
"""

import gzip
import html
import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from mimetypes import guess_type
from pathlib import Path
from typing import Any

import anyio.to_thread
import gradio
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.access import SCOPE_KEY
from ui.glossary import words
from ui.header import USER_TEMPLATE, user_html
from ui.route_answers import IMMUTABLE
from ui.theme import ASSETS as OWN_ASSETS

FRONTEND = Path(gradio.__file__).parent / "templates" / "frontend"
ASSETS = FRONTEND / "assets"
# Their names hold a hash of what they say.
HEADERS = IMMUTABLE | {"Vary": "Accept-Encoding"}
HEAD_SCRIPTS = ("clones.js", "leaving.js", "terms.js")
PACKED_FILES = 256  # a page needs about 60
PACKED_TYPES = frozenset({".js", ".css", ".svg", ".ttf"})
TYPE_REACH = 1000  # characters from a component's name to its script

_ALIASES = {"api": "state"}  # as Gradio's loader has it
_OWN_FILES = re.compile(r'(?:src|href)="\./assets/([^"]+)"')
_FILES = re.compile(r"m\.f=\[([^\]]*)\]")
_IMPORT = re.compile(r"import\(`\./([^`]+)`\)[^`]{0,60}?__vite__mapDeps\(\[([\d,]*)\]\)")
_COMPONENT = re.compile(r"component:\(\)=>\w+\(\(\)=>import\(`\./([^`]+)`\)")
_TYPE = re.compile(r"[{,](\w+):\{")


def asset_routes() -> list[Route]:
    """Routes for the files that Gradio would read and pack anew each time."""
    return [Route("/assets/{name}", _asset)]


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _names():
        return PlainTextResponse("There is no such file.", 404)
    packs = Path(name).suffix in PACKED_TYPES
    packs = packs and "gzip" in request.headers.get("accept-encoding", "")
    content = await anyio.to_thread.run_sync(_content, name, packs)
    headers = {**HEADERS, "Content-Encoding": "gzip"} if packs else HEADERS
    return Response(content, media_type=guess_type(name)[0], headers=headers)


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(path.name for path in ASSETS.iterdir() if path.is_file())


@lru_cache(maxsize=PACKED_FILES)
def _content(name: str, packs: bool) -> bytes:
    content = (ASSETS / name).read_bytes()
    return gzip.compress(content) if packs else content


class Preloads:
    """ASGI middleware: the head of each Gradio page names the files that it is going to import."""

    def __init__(self, app: ASGIApp) -> None:
        """Add to the pages of an app inside a Gradio app."""
        self._app = app
        self._heads: dict[str, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the app does; a page gets some lines more."""
        if scope["type"] == "http" and scope["method"] == "GET":
            config = scope["app"].get_blocks().config
            page = str(scope["path"]).strip("/")
            if page in config["page"]:
                if page not in self._heads:
                    self._heads[page] = await anyio.to_thread.run_sync(head_of, config, page)
                user = user_html(scope.get(SCOPE_KEY))
                template = f'<template id="{USER_TEMPLATE}">{user}</template>'.encode()
                lines = self._heads[page] + template
                send = rewriting(send, lambda body: body.replace(b"</head>", lines + b"</head>", 1))
        await self._app(scope, receive, send)


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
                body = rewrite(message["body"])
                headers["content-length"] = str(len(body))
                message = {**message, "body": body}
            await send(start)
            start = None
        await send(message)

    return send_rewritten


def head_of(config: dict[str, Any], page: str) -> bytes:
    """Lines for the head of a page: our scripts, and what its first view imports, if known."""
    theme = config["theme_hash"]
    scripts = "".join((OWN_ASSETS / name).read_text("utf-8") for name in HEAD_SCRIPTS)
    # No word can end the script early.
    told = json.dumps(words()).replace("<", "\\u003c")
    lines = [f"<script>window.ckvWords = {told};{scripts}</script>"]
    lines += [f'<link rel="preload" as="style" href="./theme.css?v={theme}">'] if theme else []
    for name in needed_files(types_of(config, page)):
        # Gradio's loader waits for no style sheet that stands in the page already.
        kind = "stylesheet" if name.endswith(".css") else "modulepreload"
        lines.append(f'<link rel="{kind}" crossorigin href="./assets/{html.escape(name)}">')
    return "".join(lines).encode()


def types_of(config: dict[str, Any], page: str) -> set[str]:
    """Types of a page's components whose scripts its first view loads.

    Gradio leaves out what is hidden itself, but not what stands in something hidden. Hidden areas
    are taken too: they are shown as soon as there is something to show.
    """
    known = {each["id"]: each for each in config["components"]}

    def walk(nodes: list[dict[str, Any]]) -> Iterator[str]:
        for node in nodes:
            component = known[node["id"]]
            children = node.get("children") or []
            if component["props"].get("visible", True) is not False or children:
                yield _ALIASES.get(component["type"], component["type"])
            yield from walk(children)

    return set(walk(config["page"][page]["layout"]["children"]))


def needed_files(types: set[str]) -> list[str]:
    """Scripts and styles in assets/ that these types of components need, the shell's first.

    Read from the built scripts, whose names change with each version; empty where a later version
    is built another way.
    """
    index = (FRONTEND / "index.html").read_text("utf-8")
    own = _OWN_FILES.findall(index)
    shell = {name: files for entry in own for name, files in _imports(entry).items()}
    found = [name for files in shell.values() for name in files]
    for script in shell:
        inner, by_type = _imports(script), _components(script)
        wanted = [name for name in inner if name.startswith("Blocks-")]
        wanted += [by_type[name] for name in sorted(types & by_type.keys())]
        found += [name for each in wanted for name in inner[each]]
    return [name for name in dict.fromkeys(found) if name not in own]


def _imports(name: str) -> dict[str, list[str]]:
    """What a script imports late -> that and all it needs, as its builder wrote it down."""
    text = (ASSETS / name).read_text("utf-8")
    listed = _FILES.search(text)
    files = re.findall(r'"\./([^"]+)"', listed[1]) if listed else []
    return {
        target: [files[int(index)] for index in indices.split(",") if index]
        for target, indices in _IMPORT.findall(text)
    }


def _components(name: str) -> dict[str, str]:
    """Type of component -> its script, as a script lists them."""
    text = (ASSETS / name).read_text("utf-8")
    found = {}
    for match in _COMPONENT.finditer(text):
        opened = list(_TYPE.finditer(text, max(0, match.start() - TYPE_REACH), match.start()))
        if opened:
            found[opened[-1][1]] = match[1]
    return found
