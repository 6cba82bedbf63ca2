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
    ROOT / "ui/methods/methods.css",
)
LOGO_PATH = ASSETS / "logo.svg"
FAVICON_PATH = ASSETS / "favicon.svg"

# Weights 400 and 700 only: the 600 files that Gradio 6.31 ships hold no Latin letters.
_WEIGHTS = (400, 700)
_BOLD = "700"

# In the light and in the dark.
_BOTH = {
    "body_background_fill": ("#f6f7f9", "#0b0f17"),
    "background_fill_primary": ("#ffffff", "#131a26"),
    "background_fill_secondary": ("#f1f4f8", "#1a2332"),
    "block_background_fill": ("#ffffff", "#131a26"),
    "block_label_background_fill": ("#ffffff", "#131a26"),
    "border_color_primary": ("#dbe1ea", "#2a3547"),
    "body_text_color": ("*neutral_900", "#e6ebf2"),
    "body_text_color_subdued": ("*neutral_600", "#9fb0c6"),
    "block_label_text_color": ("*neutral_700", "#c3cfdf"),
    "block_title_text_color": ("*neutral_800", "#dbe4f0"),
    "link_text_color": ("#1d4ed8", "#8ab4ff"),
    "link_text_color_hover": ("#1e3a8a", "#b6d0ff"),
    "link_text_color_active": ("#1e3a8a", "#b6d0ff"),
    "link_text_color_visited": ("#1d4ed8", "#8ab4ff"),
    "color_accent_soft": ("#dbe7ff", "#1d3566"),
    "input_background_fill": ("#ffffff", "#0f1621"),
    "input_border_width": ("1px", "1px"),
    "input_border_color": ("#c3ccd9", "#3a485e"),
    "input_border_color_focus": ("#1d4ed8", "#8ab4ff"),
    "input_placeholder_color": ("*neutral_500", "#8496ae"),
    "checkbox_label_background_fill": ("#ffffff", "#0f1621"),
    "button_primary_background_fill": ("#1d4ed8", "#2563eb"),
    "button_primary_background_fill_hover": ("#1e40af", "#1d4ed8"),
    "button_primary_border_color": ("#1d4ed8", "#2563eb"),
    "button_primary_text_color": ("#ffffff", "#ffffff"),
    "button_secondary_background_fill": ("#ffffff", "#1a2332"),
    "button_secondary_background_fill_hover": ("#f1f4f8", "#243044"),
    "button_secondary_border_color": ("#c3ccd9", "#3a485e"),
    "slider_color": ("#1d4ed8", "#5b8def"),
    "table_border_color": ("#dbe1ea", "#2a3547"),
}
# The same in both, or Gradio's own in the light.
_ALONE = {
    "layout_gap": "12px",
    "block_padding": "12px",
    "block_title_text_weight": _BOLD,
    "section_header_text_weight": _BOLD,
    "prose_header_text_weight": _BOLD,
    "button_large_text_weight": _BOLD,
    "button_medium_text_weight": _BOLD,
    "color_accent": "#1d4ed8",
    "checkbox_background_color_dark": "#0f1621",
    "checkbox_border_color_dark": "#5b6c86",
    "table_even_background_fill_dark": "#131a26",
    "table_odd_background_fill_dark": "#1a2332",
}


def build_theme() -> gr.themes.Base:
    """The app's theme; every font is one that Gradio ships, so nothing is fetched."""
    local = partial(gr.themes.LocalFont, weights=_WEIGHTS)
    theme = gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_md,
        spacing_size=gr.themes.sizes.spacing_md,
        text_size=gr.themes.sizes.text_md,
        font=[local("IBM Plex Sans"), "ui-sans-serif", "system-ui", "sans-serif"],
        font_mono=[local("IBM Plex Mono"), "ui-monospace", "monospace"],
    )
    light = {name: value for name, (value, _) in _BOTH.items()}
    dark = {f"{name}_dark": value for name, (_, value) in _BOTH.items()}
    return theme.set(**light, **dark, **_ALONE)
