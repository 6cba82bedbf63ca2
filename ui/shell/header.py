"""Name of the app, its pages and who is logged in, above every page."""

import html

from ui.accounts.access import Viewer
from ui.components.modules import on_load
from ui.looks.theme import LOGO_PATH

# Who is logged in stands in the head of a page of Gradio's, which is else the same for everybody.
USER_TEMPLATE = "ckv-user"
USER_SCRIPT = on_load("assets/scripts/pages/user.js")
TITLE = "CriticalKV Lab"
# Path -> title of the page, and what a preview of its address says below it.
PAGES = {
    "/": (
        "Compare",
        "Compare KV-cache eviction methods on one prompt: what each keeps, what it generates, and "
        "how far that is from the full cache.",
    ),
    "/runs": ("Runs", "Saved runs: find, compare, export."),
    "/caches": ("Caches", "Compressed caches kept under a name: compress once, ask many."),
    "/methods": (
        "Methods",
        "The methods, their parameters and defaults, and the limits of this app.",
    ),
    "/several": ("Several runs", "Saved runs as one table over their prompts, and what differs."),
}
_SKIP = '<a class="ckv-skip" href="#run">Skip to Run</a>'
_HEADER = """<header class="ckv-header">{skip}{logo}<h1>{title}</h1>
<p>What each KV-cache eviction method keeps of a prompt, and what that does to the model</p>
{nav}{user}</header>"""


def header_html(
    path: str, *, current: str = "page", user: str = "", with_links: bool = True
) -> str:
    """Our own, because Gradio's bar cannot stand beside the name.

    Args:
        path: of the page to mark; empty for none.
        current: `page`, or `true` where the page shown belongs to the marked one.
        user: of `user_html`; assets/scripts/pages/user.js adds it to pages of Gradio's.
        with_links: whether the reader may go to the pages.
    """
    links = "".join(
        f'<a href="{target}"{f" aria-current={current}" if target == path else ""}>{name}</a>'
        for target, (name, _) in PAGES.items()
        if target != "/several"  # which the list of runs leads to
    )
    nav = f'<nav aria-label="Pages">{links}</nav>' if with_links else ""
    logo = LOGO_PATH.read_text("utf-8")
    skip = _SKIP if path == "/" else ""
    return _HEADER.format(skip=skip, logo=logo, title=TITLE, nav=nav, user=user)


def user_html(viewer: Viewer | None) -> str:
    """Who is logged in, and the way out; for the header."""
    if viewer is None:
        return ""
    admin = '<a href="/admin">Admin</a>' if viewer.is_admin else ""
    if viewer.is_trusted:
        return f'<div class="ckv-user">{admin}</div>'
    if viewer.user is None:
        return '<div class="ckv-user"><a href="/login">Log in</a></div>'
    return (
        '<form class="ckv-user" method="post" action="/logout">'
        f'<a href="/account" title="Your sessions and API tokens">{html.escape(viewer.user)}</a>'
        f"{admin}<button>Log out</button></form>"
    )
