"""Puts the pages together into one Gradio app."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import gradio as gr
from fastapi import FastAPI
from gradio.routes import App
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from ckv_core.errors import ConfigError
from ckv_core.models.catalog import KNOWN, list_models
from ui.accounts.turns import Turns
from ui.api.endpoints import Api, api_routes
from ui.caches.page import CachesPage, cache_routes
from ui.compare.examples import load_examples
from ui.compare.page import ComparePage
from ui.compare.routes import compare_routes
from ui.components.modules import module_route
from ui.looks.theme import CSS_PATHS, FAVICON_PATH, build_theme
from ui.methods.page import build_methods
from ui.run.page import RunPage
from ui.run.routes import build_routes
from ui.runs.page import RunsPage, library_routes
from ui.server.gates import OwnStreams
from ui.server.guard import Guard, NamedProxies
from ui.server.identity import Identity
from ui.server.private import (
    Streams,
    end_events,
    guard_handlers,
    lighten_sessions,
    send_updates_whole,
)
from ui.services.services import Services
from ui.settings import Settings
from ui.several.page import SeveralPage, several_routes
from ui.shell.account_routes import account_routes, admin_routes, login_routes
from ui.shell.header import TITLE, USER_SCRIPT, header_html
from ui.shell.page_heads import PageHeads
from ui.shell.plain_pages import REFUSALS, BusyPages

# Former pages, and which ones have what they had.
MOVED = {
    "/sweep": "/",
    "/studies": "/?source=pasted",
    "/study": "/run",
    "/aggregate": "/several",
    "/compare-runs": "/several",
}
WAITING_EVENTS = 256
NO_MCP = (
    "CKV_MCP=1 needs the package mcp in a version that Gradio takes; install it with "
    "pip install -r requirements-mcp.txt, or leave CKV_MCP out."
)


def build_app(services: Services, settings: Settings) -> gr.Blocks:
    models = [*dict.fromkeys([settings.model, *(each.name for each in list_models()), *KNOWN])]
    app: gr.Blocks
    with gr.Blocks(title=TITLE, fill_width=True, analytics_enabled=False) as app:
        _header("/")
        ComparePage(services, settings, models=models, examples=load_examples()).wire(app)
        Api(services, settings).register()
    # Path, the page that the header marks, and what lays it out.
    pages: list[tuple[str, str, Callable[[], Any]]] = [
        ("/runs", "", lambda: RunsPage(services, import_mib=settings.limits.body_mib)),
        ("/run", "/runs", lambda: RunPage(services)),
        ("/several", "/runs", lambda: SeveralPage(services)),
        ("/caches", "", lambda: CachesPage(services, settings)),
    ]
    for path, marked, build in pages:
        with app.route(path.strip("/").title(), path, show_in_navbar=False) as route:
            _header(marked or path, current="true" if marked else "page")
            build().wire(route)
    with app.route("Methods", "/methods", show_in_navbar=False) as route:
        _header("/methods")
        build_methods(settings, route)
    app.queue(api_open=False, max_size=WAITING_EVENTS)
    return app


@dataclass(frozen=True, slots=True)
class Site:
    """What is served: the guards, behind them Gradio's app with our routes, and its pages."""

    app: ASGIApp
    gradio: App
    blocks: gr.Blocks

    def close(self) -> None:
        """Take no more events, and end the answers that wait for some."""
        end_events(self.blocks, self.gradio)


def build_site(services: Services, settings: Settings) -> Site:
    """The pages behind their guards; ConfigError where MCP is wanted and not installed."""
    identity = None
    if services.with_logins:
        identity = Identity(services.users, services.accounts, services.shares)
    turns = Turns()
    blocks = build_app(services, settings)
    guard_handlers(blocks, turns)
    send_updates_whole()
    # Gradio would answer other sites before our guard does; beside a policy it does not.
    outer = Starlette(middleware=[Middleware(CORSMiddleware)])
    with warnings.catch_warnings():
        # It warns of server-side rendering though that is off.
        warnings.simplefilter("ignore", UserWarning)
        gr.mount_gradio_app(
            cast("FastAPI", outer),
            blocks,
            path="/",
            app_kwargs={
                "routes": [
                    *(login_routes(services.accounts, identity) if identity else []),
                    *(account_routes(services.accounts) if identity else []),
                    *admin_routes(services.administration, with_logins=services.with_logins),
                    module_route(),
                    *build_routes(services),
                    *several_routes(services),
                    *compare_routes(services),
                    *cache_routes(services),
                    *library_routes(services),
                    *api_routes(Api(services, settings)),
                    *(Route(former, _moved(page)) for former, page in MOVED.items()),
                ],
                "middleware": [
                    Middleware(OwnStreams, streams=Streams(blocks)),
                    Middleware(PageHeads, services=services),
                ],
                "exception_handlers": REFUSALS,
                "docs_url": None,
                "redoc_url": None,
                "openapi_url": None,
            },
            theme=build_theme(),
            css_paths=list(CSS_PATHS),
            favicon_path=str(FAVICON_PATH),
            footer_links=[],
            run_history=False,
            ssr_mode=False,
            pwa=False,
            mcp_server=settings.mcp,
            enable_monitoring=False,
            show_error=False,
            max_file_size=settings.limits.body_bytes,
        )
    mount = cast("Mount", outer.routes[0])
    app = cast("App", mount.app)
    lighten_sessions(blocks, app)
    if blocks.mcp_error:
        raise ConfigError(NO_MCP)
    guard = Guard(outer, settings=settings, identity=identity, turns=turns)
    return Site(NamedProxies(BusyPages(guard), settings.proxies), app, blocks)


def _moved(page: str) -> Callable[[Request], Response]:
    """Lead to the page that has what a former page had, with the same query."""

    def lead(request: Request) -> Response:
        path, _, query = page.partition("?")
        queries = "&".join(filter(None, (request.url.query, query)))
        return RedirectResponse(str(request.url.replace(path=path, query=queries)), 308)

    return lead


def _header(path: str, *, current: str = "page") -> None:
    gr.HTML(header_html(path, current=current), js_on_load=USER_SCRIPT, elem_classes=["bare"])
