"""Puts the pages together into one Gradio app."""

from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from ckv_core.modeling.catalog import list_models
from ui.api import Api
from ui.api_routes import api_routes
from ui.examples import load_examples
from ui.frontend import Preloads, asset_routes
from ui.header import TITLE, header_html
from ui.library_routes import library_routes
from ui.middleware import Guard
from ui.missing import MissingPages
from ui.pages.aggregate import AggregatePage
from ui.pages.compare import ComparePage
from ui.pages.compare_runs import CompareRunsPage
from ui.pages.limits import build_limits
from ui.pages.methods import build_methods
from ui.pages.run import RunPage
from ui.pages.runs import RunsPage
from ui.pages.sweep import SweepPage
from ui.routes import build_routes
from ui.services import Services
from ui.sessions import lifespan
from ui.settings import Settings
from ui.several_routes import several_routes
from ui.theme import ASSETS, CSS_PATHS, FAVICON_PATH, build_theme

PAGE_CSS = [ASSETS / f"{name}.css" for name in ("pages", "sweep", "library")]
# 12 KiB each. A page whose session was dropped loses the choices that its menus have got since.
SESSIONS = 1000
WAITING_EVENTS = 256


def build_app(services: Services, settings: Settings) -> gr.Blocks:
    """All pages, wired to the services."""
    app: gr.Blocks
    with gr.Blocks(title=TITLE, fill_width=True, analytics_enabled=False) as app:
        _header("/")
        compare = ComparePage(
            services, settings, models=_models(settings.model), examples=load_examples()
        )
        compare.wire(app)
        Api(services, settings).register()
    with app.route("Sweep", "/sweep", show_in_navbar=False) as sweep_route:
        _header("/sweep")
        SweepPage(
            services, settings, models=_models(settings.model), examples=load_examples()
        ).wire(sweep_route)
    with app.route("Runs", "/runs", show_in_navbar=False) as runs_route:
        _header("/runs")
        RunsPage(services, import_mib=settings.limits.body_mib).wire(runs_route)
    with app.route("Compare runs", "/compare-runs", show_in_navbar=False) as compared_route:
        _header("/runs", current="true")
        CompareRunsPage(services).wire(compared_route)
    with app.route("Methods", "/methods", show_in_navbar=False):
        _header("/methods")
        build_methods()
        build_limits(settings.limits, with_logins=bool(settings.users))
    with app.route("Run", "/run", show_in_navbar=False) as run_route:
        _header("/runs", current="true")
        RunPage(services).wire(run_route)
    with app.route("Several runs", "/aggregate", show_in_navbar=False) as aggregate_route:
        _header("/runs", current="true")
        AggregatePage(services).wire(aggregate_route)
    app.queue(api_open=False, max_size=WAITING_EVENTS)
    return app


def launch_options(services: Services, settings: Settings) -> dict[str, Any]:
    """How the app is served; see docs of `gr.Blocks.launch`."""
    return {
        "app_kwargs": {
            "routes": [
                *asset_routes(),
                *build_routes(services),
                *several_routes(services),
                *library_routes(services),
                *api_routes(Api(services, settings)),
            ],
            "middleware": [
                Middleware(Guard, settings=settings, opened_runs=services.shares.slugs),
                Middleware(MissingPages),
                Middleware(Preloads),
            ],
            "lifespan": lifespan,
            "docs_url": None,
            "redoc_url": None,
            "openapi_url": None,
        },
        "server_name": settings.host,
        "server_port": settings.port,
        "theme": build_theme(),
        "css_paths": [*CSS_PATHS, *PAGE_CSS],
        "favicon_path": FAVICON_PATH,
        "footer_links": [],
        "run_history": False,
        "ssr_mode": False,
        "pwa": False,
        "mcp_server": settings.mcp,
        "share": False,
        "enable_monitoring": False,
        "show_error": False,
        "state_session_capacity": SESSIONS,
        "max_file_size": settings.limits.body_bytes,
        "quiet": True,
        "prevent_thread_lock": True,
    }


def _header(path: str, *, current: str = "page") -> None:
    gr.HTML(header_html(path, current=current), elem_classes=["bare"])


def _models(chosen: str) -> list[str]:
    names = [model.name for model in list_models()]
    return names if chosen in names else [chosen, *names]
