"""What our components are: a gr.HTML with a static template, whose text a module sets."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from ui.components.modules import ROOT, on_load
from ui.looks.glossary import with_terms

# Fills the template's only element; the value never passes through a template, because
# Gradio evaluates templates and model output is untrusted.
_TEMPLATE = '<div class="ckv" data-component="{name}"></div>'


@dataclass(frozen=True, slots=True)
class Scripted:
    """A component whose content a module draws out of a small dict.

    A subclass of gr.HTML would make Gradio write a .pyi file beside its source.

    Attributes:
        name: what the root element is called in `data-component`.
        module: path of the module in the repository; its default export is called with {root,
            element, props, trigger, watch}, and what it triggers are the component's events.
    """

    name: str
    module: str

    def __call__(
        self,
        value: dict[str, Any] | list[str] | None = None,
        *,
        section: str = "",
        elem_classes: Sequence[str] = (),
        **kwargs: Any,
    ) -> gr.HTML:
        """Lay out an empty component; call inside a Blocks context.

        `section` is `### Heading` and a line above it: apart it would be mounted each time too.
        """
        return gr.HTML(
            value,
            elem_classes=["ckv-host", *elem_classes],
            html_template=section_html(section) + _TEMPLATE.format(name=self.name),
            js_on_load=on_load(self.module),
            apply_default_css=False,
            **kwargs,
        )


def component(beside: str, script: str, *, part: str = "") -> Scripted:
    """A component of the module `script`.js that stands beside a Python file.

    Args:
        beside: that file.
        script: name of the module, with dashes that of the component too.
        part: name of the component where it looks like another one.
    """
    path = Path(beside).with_name(f"{script}.js").relative_to(ROOT).as_posix()
    return Scripted(part or script.replace("_", "-"), path)


def section_html(text: str) -> str:
    """Our own words above a section: `### Heading`, then a line of text; empty for none."""
    if not text:
        return ""
    heading, _, words = map(html.escape, text.removeprefix("### ").partition("\n"))
    words = with_terms(words)
    return f'<div class="section prose"><h3>{heading}</h3><p>{words}</p></div>'
