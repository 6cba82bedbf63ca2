"""Pages without Gradio, in the look of the app: what stands before the login, and forms.

They work without scripts; the only one picks dark or light. Templates are in assets/pages/ and
escape what they are given.
"""

import functools
from datetime import datetime

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from ui.accounts.access import Viewer
from ui.looks.theme import ASSETS
from ui.server.route_answers import NO_STORE
from ui.shell.header import TITLE, header_html, user_html


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
    text = page.render({"told": "", "done": ""} | values, title=title, app=TITLE, header=header)
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
