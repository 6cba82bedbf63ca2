"""Serves the components page and opens it in a browser."""

from collections.abc import Callable, Iterator

import pytest

from tests.processes import free_port
from tests.ui.components.lab import Lab, View, build_page, data_routes
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
def view(lab, browser) -> Iterator[View]:
    """The one page of a module's tests."""
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield View(context, lab)
    context.close()


@pytest.fixture
def open_view(view) -> Iterator[Callable[..., View]]:
    """Open the page; afterwards nothing may have run hostile text."""
    yield view.open
    view.page.unroute_all()
    assert view.page.evaluate("window.__hit") is None
