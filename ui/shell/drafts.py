"""What is typed into a form stays in the browser's tab until New is pressed."""

import zlib
from collections.abc import Sequence
from typing import Any

import gradio as gr

from ui.components.modules import imported
from ui.shell.parts import AT_ONCE

_SCRIPT = imported("assets/scripts/pages/drafts.js")


class Draft:
    """Keeps one form's values with assets/scripts/pages/drafts.js; no server sees them.

    Attributes:
        restored: hidden; changes once kept values stand in the form again.
    """

    def __init__(self, path: str, controls: Sequence[Any], new: gr.Button | None = None) -> None:
        """Keep what is typed into these controls of the page at a path; call inside Blocks."""
        # Another version's form may have other controls.
        names = " ".join(str(each.elem_id) for each in controls)
        self._controls = list(controls)
        self._name = f"{path}-{zlib.crc32(names.encode()):08x}"
        self._keep = _calling("...values", f"keep({self._name!r}, values)")
        self.restored = gr.Textbox(visible="hidden")
        # The script presses it at whatever is done in the form.
        keep = gr.Button(visible="hidden", elem_id="draft-keep")
        keep.click(None, self._controls, None, js=self._keep, trigger_mode="multiple", **AT_ONCE)
        if new is not None:
            blank = _calling("", f"startAnew({self._name!r}, {path!r})")
            new.click(None, None, None, js=blank, **AT_ONCE)

    def keep_after(self, event: Any) -> None:
        """Keep the values too that a handler filled in."""
        event.then(None, self._controls, None, js=self._keep, **AT_ONCE)

    def restore_after(self, opened: Any) -> None:
        """Put the kept values back once the page's own handler has filled its controls."""
        js = _calling("", f"restore({self._name!r}, {len(self._controls)})")
        opened.then(None, None, [*self._controls, self.restored], js=js, **AT_ONCE)


def _calling(given: str, call: str) -> str:
    return f"({given}) => {_SCRIPT}.then((module) => module.{call})"
