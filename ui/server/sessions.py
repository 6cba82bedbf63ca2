"""Gradio's sessions without the copy of every component's settings and last value.

Gradio keeps the copy for deep links, which are closed here (ui/server/middleware.py). Making it
costs each new session 50 ms on the event loop, and it would hold what a visitor pasted.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
from gradio.routes import App
from gradio.state_holder import SessionState, StateHolder

from ui.server.streams import Streams


class Session(SessionState):
    """Which components a session has changed, and nothing of what they hold."""

    def __init__(self, blocks: gr.Blocks) -> None:
        """Start without changes; no component is copied."""
        without_components = SimpleNamespace(default_config=blocks.default_config, blocks={})
        super().__init__(cast(gr.Blocks, without_components))
        self.blocks_config.config_for_block = _no_config  # type: ignore[assignment, method-assign]


class Sessions(StateHolder):
    """All sessions of an app."""

    def __getitem__(self, session_id: str) -> SessionState:
        """The session of this name, a new one if there is none."""
        if session_id not in self.session_data:
            self.session_data[session_id] = Session(self.blocks)
        return super().__getitem__(session_id)


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[None]:
    """Give an app these sessions; for the `app_kwargs` of `gr.Blocks.launch`."""
    app.state_holder = Sessions()  # type: ignore[no-untyped-call]
    app.state_holder.set_blocks(app.get_blocks())
    app.state.streams = Streams(app.get_blocks()._queue)
    yield


def _no_config(*_: Any) -> dict[str, Any]:
    return {}
