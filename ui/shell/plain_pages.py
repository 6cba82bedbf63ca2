"""Pages without Gradio, in the look of the app: what stands before the login, and forms.

They work without scripts; the only one picks dark or light. Templates are in assets/pages/ and
escape what they are given.
"""

import functools
from datetime import datetime

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from ui.accounts.access import SCOPE_KEY, Viewer
from ui.looks.theme import ASSETS
from ui.server.route_answers import NO_STORE
from ui.shell.header import TITLE, header_html, user_html


def plain_page(
    name: str,
    title: str,
    viewer: Viewer | None,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
    **values: object,
) -> HTMLResponse:
    """The template of this name in assets/pages/; a viewer of None, nobody, gets no links."""
    header = header_html("", user=user_html(viewer), with_links=viewer is not None)
    page = _templates().get_template(f"{name}.html")
    text = page.render({"told": "", "done": ""} | values, title=title, app=TITLE, header=header)
    return HTMLResponse(text, status, {**NO_STORE, **(headers or {})})


def viewer_of(request: Request) -> Viewer:
    """Who sent a request, as the guard noted."""
    found = request.scope.get(SCOPE_KEY)
    return found if isinstance(found, Viewer) else Viewer()


@functools.cache
def _templates() -> Environment:
    found = Environment(
        loader=FileSystemLoader(ASSETS / "pages"), autoescape=True, undefined=StrictUndefined
    )
    found.globals["style"] = "".join(
        (ASSETS / f"{name}.css").read_text("utf-8") for name in ("app", "plain")
    )
    found.filters |= {"utc": _utc, "mib": _mib}
    return found


def _utc(at: datetime | None, never: str = "never") -> str:
    return f"{at:%Y-%m-%d %H:%M}" if at else never


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"
