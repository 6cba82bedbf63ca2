"""Serves the components page and opens it in a browser."""

from collections.abc import Callable, Iterator

import pytest

from tests.processes import free_port
from tests.ui.components.components_lab import Lab, View, Visitor, build_page, data_routes
from ui.components.modules import module_route
from ui.looks.theme import CSS_PATHS, build_theme


@pytest.fixture(scope="session")
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
        app_kwargs={"routes": [*data_routes(lab), module_route()]},
    )
    yield lab
    demo.close()


@pytest.fixture(scope="module")
def visitor(lab, browser) -> Iterator[Visitor]:
    """Their one page is loaded anew for each test, from what the browser has kept already."""
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield Visitor(context, lab.url)
    context.close()


@pytest.fixture
def open_view(lab, visitor) -> Iterator[Callable[..., View]]:
    """Open the page; afterwards nothing may have failed, left the origin, or run hostile text."""
    page = visitor.page

    def opener(width: int = 1600, theme: str = "light", fragment: str = "") -> View:
        page.set_viewport_size({"width": width, "height": 1000})
        page.goto("about:blank")  # or another fragment alone would load nothing
        page.goto(f"{lab.url}?__theme={theme}{fragment}")
        page.wait_for_selector("#kept [data-ready]", state="attached")
        return View(page, lab, visitor.faults)

    yield opener
    page.unroute_all()
    faults = visitor.faults.copy()
    visitor.faults.clear()
    assert page.evaluate("window.__hit") is None
    assert faults == []
