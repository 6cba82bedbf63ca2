"""What the head of each page says of it: its title, and the og: tags that link previews show."""

import html
import re
from urllib.parse import parse_qs

import anyio.to_thread
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ckv_core.errors import CkvError
from storage.records import RunSummary
from storage.repository import RunMissingError
from ui.frontend import rewriting
from ui.header import TITLE
from ui.pages.live import UNKNOWN_RUN
from ui.route_answers import missing
from ui.services import Services
from ui.slugs import is_slug

# Page -> its own title, and what a preview says below it.
PAGES = {
    "": (
        "Compare",
        "Compare KV-cache eviction methods on one prompt: what each keeps, what it generates, and "
        "how far that is from the full cache.",
    ),
    "sweep": ("Sweep", "Budgets, alphas and methods of KV-cache eviction on one prompt."),
    "runs": ("Runs", "Saved runs: find, compare, aggregate, export."),
    "compare-runs": ("Compare runs", "Saved runs side by side, variant by variant."),
    "aggregate": ("Aggregate", "Means over the prompts of several runs, with intervals and n."),
    "methods": ("Methods", "The methods, their knobs and defaults, and the limits of this app."),
}
_KINDS = {"compare": ("Run", "variants"), "sweep": ("Sweep", "points")}
_GRADIOS = re.compile(r'[ \t]*<meta\s+(?:property="og:|name="twitter:)[^>]*>\n?')


class PageHeads:
    """ASGI middleware: pages get their own head; the page of a run that is not there is a 404."""

    def __init__(self, app: ASGIApp, *, services: Services) -> None:
        """Add to the pages of an app inside a Gradio app."""
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the app does, but for the head of a page."""
        page = str(scope.get("path", "")).strip("/")
        is_page = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if not is_page or (page not in PAGES and page != "run"):
            await self._app(scope, receive, send)
            return
        words, query = PAGES.get(page), ""
        if words is None:
            slug = parse_qs(str(scope["query_string"], "latin-1")).get("id", [""])[0]
            try:
                words = await anyio.to_thread.run_sync(self._words_of, slug)
            except RunMissingError:
                await missing(UNKNOWN_RUN)(scope, receive, send)
                return
            query = f"id={slug}"
        url = str(Request(scope).url.replace(query=query, fragment=""))
        await self._app(scope, receive, rewriting(send, lambda body: with_head(body, *words, url)))

    def _words_of(self, slug: str) -> tuple[str, str]:
        """Title and description of a run's page.

        Raises:
            RunMissingError: there is no such run, or it is somebody else's.
        """
        if not is_slug(slug):
            raise RunMissingError(UNKNOWN_RUN)
        try:
            summary = self._services.library.summary(slug)
        except RunMissingError:
            raise
        except CkvError:  # the page itself tells what is wrong
            return "Run", "A saved run."
        return words_of(summary, with_text=self._services.is_guest)


def words_of(run: RunSummary, *, with_text: bool) -> tuple[str, str]:
    """Title and description of a run; its own words only where its owner shared it by link."""
    kind, parts = _KINDS.get(run.kind, _KINDS["compare"])
    methods = list(dict.fromkeys(spec.partition(":")[0] for spec in run.variant_specs))
    count = len(run.variant_specs)
    title = f"{kind} {run.slug}: {count} {parts if count != 1 else parts[:-1]}"
    if with_text and run.title:
        title = run.title
    return title, f"{', '.join(methods)} on {run.model_name}, {run.created_at:%Y-%m-%d}."


def with_head(body: bytes, title: str, description: str, url: str) -> bytes:
    """A page of Gradio with this head in place of the previews that Gradio writes."""
    page = _GRADIOS.sub("", body.decode())
    # Gradio's script would give every page the title of the app.
    page = page.replace('control_page_title="true"', 'control_page_title="false"', 1)
    full = f"{title} - {TITLE}"
    tags = {
        "og:site_name": TITLE,
        "og:type": "website",
        "og:title": full,
        "og:description": description,
        "og:url": url,
    }
    lines = [f"<title>{html.escape(full)}</title>"]
    lines.append(f'<meta name="description" content="{html.escape(description)}">')
    lines += [f'<meta property="{k}" content="{html.escape(v)}">' for k, v in tags.items()]
    lines.append('<meta name="twitter:card" content="summary">')
    return page.replace("</head>", "".join(lines) + "</head>", 1).encode()
