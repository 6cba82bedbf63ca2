"""Sessions keep what a page has changed, and nothing of what a visitor typed."""

from collections.abc import Iterator

import gradio as gr
import httpx
import pytest
from gradio.state_holder import SessionState

from tests.processes import free_port
from ui.server.sessions import Session, Sessions, lifespan

SECRET = "the pasted text"


@pytest.fixture(scope="module")
def blocks() -> Iterator[gr.Blocks]:
    with gr.Blocks(analytics_enabled=False) as app:
        text, echo = gr.Textbox(), gr.Textbox()
        choice = gr.Dropdown(["old"], value="old")
        text.submit(lambda given: (given, gr.update(choices=["new"])), text, [echo, choice])
        choice.change(lambda given: given, choice, echo)
    app.launch(
        app_kwargs={"lifespan": lifespan},
        server_port=free_port(),
        prevent_thread_lock=True,
        quiet=True,
        ssr_mode=False,
    )
    yield app
    app.close(verbose=False)


def called(app: gr.Blocks, handler: int, value: str, session: str) -> httpx.Response:
    body = {"data": [value], "fn_index": handler, "session_hash": session}
    return httpx.post(f"{app.local_url}gradio_api/run/predict", json=body)


def test_the_app_uses_them(blocks):
    assert isinstance(blocks.server_app.state_holder, Sessions)
    assert blocks.state_holder is blocks.server_app.state_holder


def test_a_session_has_all_that_gradio_expects_of_one(blocks):
    assert vars(Session(blocks)).keys() == vars(SessionState(blocks)).keys()


def test_a_change_is_kept_for_its_session_alone(blocks):
    assert called(blocks, 0, "x", "first").status_code == 200
    assert called(blocks, 1, "new", "first").json()["data"] == ["new"]
    assert called(blocks, 1, "new", "second").status_code == 500
    assert called(blocks, 1, "old", "second").json()["data"] == ["old"]


def test_what_was_typed_is_not_kept(blocks):
    assert called(blocks, 0, SECRET, "third").json()["data"][0] == SECRET
    session = blocks.state_holder["third"]
    components = [vars(each) for each in session.blocks_config.blocks.values()]
    assert SECRET not in repr([session.config_values, session.state_data, components])
