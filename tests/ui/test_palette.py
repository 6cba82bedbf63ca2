"""Every variant is told apart by colour and by shape, in light and in dark."""

import pytest

from ui.palette import VARIANT_COLORS, color_of, dash_of, marker_of
from ui.theme import CSS_PATHS, FAVICON_PATH, LOGO_PATH, build_theme


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    dark, light = sorted((luminance(one), luminance(two)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("background", ["#ffffff", "#f6f7f9", "#131a26", "#0b0f17"])
@pytest.mark.parametrize("color", VARIANT_COLORS)
def test_every_colour_has_contrast_three_on_every_surface(color: str, background: str) -> None:
    assert contrast(color, background) >= 3


def test_colour_and_marker_together_are_unique_for_sixty_four_variants() -> None:
    assert len({(color_of(i), marker_of(i)) for i in range(64)}) == 64
    assert len({marker_of(i) for i in range(8)}) == 8
    assert dash_of(0) == "solid"


def test_theme_builds_and_its_files_exist() -> None:
    theme = build_theme()
    surface, text = theme.body_background_fill_dark, theme.body_text_color_subdued_dark
    assert contrast(surface, text) >= 4.5
    assert theme._stylesheets == []
    assert all(path.is_file() for path in (*CSS_PATHS, LOGO_PATH, FAVICON_PATH))
