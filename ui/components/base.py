"""Base of our components: a static template and a script; all text is set by the script."""

import html
import json
from abc import ABCMeta
from collections.abc import Sequence
from typing import Any

import gradio as gr
from gradio.component_meta import ComponentMeta, updateable

from ui.looks.glossary import with_terms
from ui.looks.palette import DENSITY_STOPS, DIVERGING_STOPS, DIVERGING_STOPS_DARK
from ui.looks.theme import ASSETS

# Fills the template's only element; the value never passes through a template, because
# Gradio evaluates templates and model output is untrusted.
_TEMPLATE = '<div class="ckv" data-component="{name}"></div>'

_PALETTE = json.dumps(
    {
        "density": DENSITY_STOPS,
        "diverging": DIVERGING_STOPS,
        "divergingDark": DIVERGING_STOPS_DARK,
    }
)


class _NoStubs(ComponentMeta):
    """Gradio's own metaclass writes a .pyi file beside the source of each subclass."""

    def __new__(cls, name: str, bases: tuple[type, ...], attrs: dict[str, Any]) -> "_NoStubs":
        if "__init__" in attrs:
            attrs["__init__"] = updateable(attrs["__init__"])  # type: ignore[no-untyped-call]
        return ABCMeta.__new__(cls, name, bases, attrs)


class ScriptedHtml(gr.HTML, metaclass=_NoStubs):
    """A gr.HTML whose content is drawn by scripts from assets/ out of a small dict.

    Attributes:
        SCRIPTS: files in assets/, joined in this order after common.js into one function
            body; they see `root`, `props`, `trigger`, `watch` and each other's names.
        NAME: what the root element is called in `data-component`.
    """

    SCRIPTS: tuple[str, ...] = ()
    NAME: str = ""

    def __init__(
        self,
        value: dict[str, Any] | list[str] | None = None,
        *,
        section: str = "",
        elem_classes: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        """Lay out an empty component; call inside a Blocks context.

        Args:
            value: what the scripts draw.
            section: our own words above it, `### Heading` and a line of text. A component of
                their own would be mounted each time too.
            elem_classes: as for any component.
            kwargs: as for gr.HTML.
        """
        # Gradio reads every argument back, and would find an event's name.
        self.section = section
        super().__init__(
            value,
            elem_classes=["ckv-host", *elem_classes],
            html_template=section_html(section) + _TEMPLATE.format(name=self.NAME),
            js_on_load=self.script(),
            apply_default_css=False,
            **kwargs,
        )

    @classmethod
    def script(cls) -> str:
        """Body of the function that draws the component; the report runs it without Gradio."""
        return _script(("common.js", *cls.SCRIPTS))

    def api_info(self) -> dict[str, Any]:
        """Schema of the value: an object."""
        return {"type": "object"}


def section_html(text: str) -> str:
    """Our own words above a section: `### Heading`, then a line of text; empty for none."""
    if not text:
        return ""
    heading, _, words = map(html.escape, text.removeprefix("### ").partition("\n"))
    words = with_terms(words)
    return f'<div class="section prose"><h3>{heading}</h3><p>{words}</p></div>'


def _script(names: tuple[str, ...]) -> str:
    """Join asset scripts into one function body, the palette first."""
    parts = ['"use strict";', f"const PALETTE = {_PALETTE};"]
    parts += [(ASSETS / name).read_text(encoding="utf-8") for name in names]
    return "\n".join(parts)
