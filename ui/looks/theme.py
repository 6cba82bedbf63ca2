"""Look of the app: the Gradio theme (light and dark) and the style sheets."""

from functools import partial
from pathlib import Path

import gradio as gr

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "assets"
# What a page adds comes last; each component's sheet is beside it.
CSS_PATHS: tuple[Path, ...] = (
    ASSETS / "app.css",
    ASSETS / "components.css",
    *sorted(ROOT.glob("ui/components/*/*.css")),
    ASSETS / "pages.css",
    ROOT / "ui/compare/compare.css",
    ROOT / "ui/methods/methods.css",
)
LOGO_PATH = ASSETS / "logo.svg"
FAVICON_PATH = ASSETS / "favicon.svg"

# Weights 400 and 700 only: the 600 files that Gradio 6.31 ships hold no Latin letters.
_WEIGHTS = (400, 700)
_BOLD = "700"

# Gradio's variables are those of assets/app.css, where each has a light and a dark value.
_COLOURS = {
    "body_background_fill": "bg",  # which a script of Gradio's reads
    "background_fill_primary": "surface",
    "background_fill_secondary": "sunken",
    "border_color_primary": "line",
    "body_text_color": "ink",
    "body_text_color_subdued": "ink-2",
    "block_info_text_color": "ink-3",
    "block_label_text_color": "ink-2",  # of Gradio's buttons with an icon, by a script
    "block_title_text_color": "ink",
    "accordion_text_color": "ink",
    "link_text_color": "ink",
    "link_text_color_hover": "ink",
    "link_text_color_active": "ink",
    "link_text_color_visited": "ink",
    "code_background_fill": "sunken",
    "input_background_fill": "surface",
    "input_border_color": "control",
    "input_border_color_focus": "control",
    "input_placeholder_color": "ink-3",
    "checkbox_background_color": "surface",
    "checkbox_background_color_hover": "hover",
    "checkbox_background_color_selected": "ink",
    "checkbox_border_color": "control",
    "checkbox_border_color_hover": "control",
    "checkbox_border_color_focus": "control",
    "checkbox_border_color_selected": "ink",
    "checkbox_label_background_fill": "surface",
    "checkbox_label_background_fill_hover": "hover",
    "checkbox_label_background_fill_selected": "sunken",
    "checkbox_label_border_color": "line-2",
    "checkbox_label_text_color": "ink",
    "checkbox_label_text_color_selected": "ink",
    "button_primary_background_fill": "primary",
    "button_primary_background_fill_hover": "primary",
    "button_primary_border_color": "primary",
    "button_primary_border_color_hover": "primary",
    "button_primary_text_color": "on-primary",
    "button_secondary_background_fill": "surface",
    "button_secondary_background_fill_hover": "hover",
    "button_secondary_border_color": "line-2",
    "button_secondary_border_color_hover": "control",
    "button_secondary_text_color": "ink",
    "error_background_fill": "bad-bg",
    "error_border_color": "bad",
    "error_text_color": "bad",
    "error_icon_color": "bad",
}
_SIZES = {
    "layout_gap": "12px",
    # Fields lie in cards of ours, without a box of their own.
    "block_padding": "0px",
    "block_border_width": "0px",
    "block_border_color": "transparent",
    "block_border_color_dark": "transparent",
    "form_gap_width": "12px",
    "block_radius": "0px",
    "block_title_text_size": "13px",
    "block_title_text_weight": _BOLD,
    "block_info_text_size": "12px",
    "section_header_text_weight": _BOLD,
    "prose_header_text_weight": _BOLD,
    "input_border_width": "1px",
    "input_padding": "7px 10px",
    "input_radius": "var(--ckv-r)",
    "button_large_padding": "7px 18px",
    "button_large_radius": "var(--ckv-r)",
    "button_large_text_size": "14px",
    "button_large_text_weight": _BOLD,
    "button_small_padding": "4px 8px",
    "button_small_radius": "var(--ckv-r)",
    "button_small_text_size": "13px",
    "checkbox_border_radius": "4px",
    "checkbox_label_padding": "6px 10px",
    "block_background_fill": "transparent",
    "block_background_fill_dark": "transparent",
    "color_accent": "var(--ckv-ink)",
}


def build_theme() -> gr.themes.Base:
    """The app's theme; every font is one that Gradio ships, so nothing is fetched."""
    local = partial(gr.themes.LocalFont, weights=_WEIGHTS)
    theme = gr.themes.Base(
        primary_hue=gr.themes.colors.slate,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_md,
        spacing_size=gr.themes.sizes.spacing_md,
        text_size=gr.themes.sizes.text_md,
        font=[local("IBM Plex Sans"), "ui-sans-serif", "system-ui", "sans-serif"],
        font_mono=[local("IBM Plex Mono"), "ui-monospace", "monospace"],
    )
    colours = {name: f"var(--ckv-{colour})" for name, colour in _COLOURS.items()}
    dark = {f"{name}_dark": value for name, value in colours.items()}
    return theme.set(**colours, **dark, **_SIZES)
