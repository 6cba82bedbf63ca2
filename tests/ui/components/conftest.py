"""Serves the components page and opens it in a browser."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from tests.ports import free_port
from tests.ui.components.components_lab import Lab, View, build_page, data_routes
from ui.theme import CSS_PATHS, build_theme


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Serve the page on a free port."""
    lab = Lab()
    demo = build_page()
    _, lab.url, _ = demo.launch(
        prevent_thread_lock=True,
        quiet=True,
        server_port=free_port(),
        theme=build_theme(),
        css_paths=list(CSS_PATHS),
        footer_links=[],
        ssr_mode=False,
        run_history=False,
        app_kwargs={"routes": data_routes(lab)},
    )
    yield lab
    demo.close()


@pytest.fixture
def open_view(lab: Lab, browser: Browser) -> Iterator[Callable[..., View]]:
    """Open the page; afterwards nothing may have failed, left the origin, or run hostile text."""
    views: list[View] = []

    def opener(width: int = 1600, theme: str = "light", fragment: str = "") -> View:
        context = browser.new_context(viewport={"width": width, "height": 1000})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        view = View(page, lab)
        page.on(
            "console",
            lambda message: message.type == "error" and view.console.append(message.text),
        )
        page.on("pageerror", lambda error: view.console.append(str(error)))
        page.on(
            "request",
            lambda request: (
                request.url.startswith(("http", "ws"))
                and not request.url.startswith(lab.url)
                and view.foreign.append(request.url)
            ),
        )
        page.goto(f"{lab.url}?__theme={theme}{fragment}")
        page.wait_for_selector("#kept [data-ready]", state="attached")
        views.append(view)
        return view

    yield opener
    for view in views:
        hit = view.page.evaluate("window.__hit")
        view.page.context.close()
        assert hit is None
        assert view.console == []
        assert view.foreign == []
