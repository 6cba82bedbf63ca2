"""Below the form, before any result: what the reader will see, and the app's own example run."""

import gradio as gr

from ui.components.base import ExampleCard

WHAT = """<h2>What you will see</h2><ol>
<li><span>A model stores every token it has read in its <b>KV cache</b>. For long texts that memory
is the bottleneck.</span></li>
<li><span><b>Eviction</b> throws most of it away. Each method makes a different choice of what to
keep.</span></li>
<li><span>Look at <b>which methods still answer</b>, what they kept, and what that
saves.</span></li>
</ol>"""


def build_intro() -> None:
    """Lay both out; call inside a Blocks context."""
    with gr.Row(elem_id="intro", equal_height=False):
        gr.HTML(WHAT, elem_classes=["bare"])
        ExampleCard(elem_id="example")
