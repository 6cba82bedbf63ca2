"""A small chart with buttons that save it as PNG, SVG and CSV."""

import gradio as gr

from ui.components.base import ScriptedHtml


class PlotFiles(ScriptedHtml):
    """Saves the chart named by {"plot": elem_id, "title"}; its data as it is drawn."""

    NAME = "plot-files"
    SCRIPTS = ("plot_files.js",)


def plot_with_files(label: str, elem_id: str) -> gr.Plot:
    """A gr.Plot and its buttons; call inside a Row."""
    with gr.Column(min_width=320):
        plot = gr.Plot(label=label, elem_id=elem_id)
        PlotFiles({"plot": elem_id, "title": label}, elem_id=f"{elem_id}-files")
    return plot
