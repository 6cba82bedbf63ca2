"""Name of the app, its pages and who is logged in, above every page."""

import html

from ui.accounts.access import Viewer
from ui.components.modules import on_load
from ui.looks.theme import LOGO_PATH

# Who is logged in stands in the head of a page of Gradio's, which is else the same for everybody.
USER_TEMPLATE = "ckv-user"
USER_SCRIPT = on_load("assets/scripts/pages/user.js")
THEME_SCRIPT = "assets/scripts/pages/theme.js"
TITLE = "CriticalKV Lab"
# Path -> title of the page, and what a preview of its address says below it.
PAGES = {
    "/": "Compare",
    "/runs": "Runs",
    "/caches": "Caches",
    "/methods": "Methods",
    "/several": "Several runs",
}
_SKIP = '<a class="ckv-skip" href="#run">Skip to Run</a>'
_HEADER = """<header class="ckv-header">{skip}<h1>{brand}</h1>{nav}
<div class="ckv-header-end">{user}{theme}{keys}</div></header>"""
# The style sheet shows the part of the theme that the page has; assets/scripts/pages/theme.js acts.
_THEME = """<button type="button" class="ckv-button ckv-quiet ckv-theme" \
title="Theme: the system's, light or dark">
<span data-theme="system"><svg viewBox="0 0 16 16" aria-hidden="true">\
<circle cx="8" cy="8" r="6"/><path d="M8 2a6 6 0 0 1 0 12z" fill="currentColor"/></svg>\
<span class="ckv-offscreen">Theme: system</span></span>
<span data-theme="light"><svg viewBox="0 0 16 16" aria-hidden="true">\
<circle cx="8" cy="8" r="3"/><path d="M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1.1 1.1\
M11.9 11.9 13 13M3 13l1.1-1.1M11.9 4.1 13 3"/></svg>\
<span class="ckv-offscreen">Theme: light</span></span>
<span data-theme="dark"><svg viewBox="0 0 16 16" aria-hidden="true">\
<path d="M13.5 9.6A6 6 0 0 1 6.4 2.5a6 6 0 1 0 7.1 7.1z"/></svg>\
<span class="ckv-offscreen">Theme: dark</span></span></button>"""
_KEYS = """<button type="button" class="ckv-button ckv-quiet ckv-keys-button" \
title="Keys" aria-label="Keys" aria-keyshortcuts="?" aria-haspopup="dialog">?</button>"""


def header_html(
    path: str, *, current: str = "page", user: str | None = None, with_links: bool = True
) -> str:
    """Our own, because Gradio's bar cannot stand beside the name.

    Args:
        path: of the page to mark; empty for none.
        current: `page`, or `true` where the page shown belongs to the marked one.
        user: of `user_html`; None for a page of Gradio's, whose scripts add it and know keys.
        with_links: whether the reader may go to the pages.
    """
    links = "".join(
        f'<a href="{target}"{f" aria-current={current}" if target == path else ""}>{name}</a>'
        for target, name in PAGES.items()
        if target != "/several"  # which the list of runs leads to
    )
    nav = f'<nav aria-label="Pages">{links}</nav>' if with_links else ""
    brand = f"{LOGO_PATH.read_text('utf-8')}<b>{TITLE}</b>"
    return _HEADER.format(
        skip=_SKIP if path == "/" else "",
        brand=f'<a href="/">{brand}</a>' if with_links else f"<span>{brand}</span>",
        nav=nav,
        user=user or "",
        theme=_THEME,
        keys=_KEYS if user is None else "",
    )


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
