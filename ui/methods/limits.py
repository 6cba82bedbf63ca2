"""The list of limits on the Methods page."""

import gradio as gr

from ui.limits import Limits
from ui.shell.parts import Facts

TEXT = "## Limits\nWhat this app takes at most; whoever runs it sets them with `CKV_MAX_...`."


def build_limits(limits: Limits, *, with_logins: bool) -> None:
    """Lay out the list; call inside a page's route."""
    gr.Markdown(TEXT, elem_classes=["section"])
    rows = [{"label": name, "text": text} for name, text in limits.rows(with_logins=with_logins)]
    Facts({"rows": rows}, elem_id="limits")
