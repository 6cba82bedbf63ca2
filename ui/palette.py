"""Colours, markers and dashes of variants, and the colour maps of every chart and heat map."""

# Okabe-Ito hues, moved in lightness until each has at least 3:1 contrast on white and on the
# dark card alike. Neighbours differ in lightness too, so the order survives a grey print.
VARIANT_COLORS: tuple[str, ...] = (
    "#64748b",  # slate
    "#0077bb",  # blue
    "#c95c00",  # vermillion
    "#00936b",  # bluish green
    "#c0669a",  # reddish purple
    "#a87a00",  # ochre
    "#3a8fc4",  # sky
    "#8a63c9",  # violet
)

# Plotly symbol names; the HTML components draw the same shapes.
MARKERS: tuple[str, ...] = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "triangle-down",
    "cross",
    "x",
    "star",
)

DASHES: tuple[str, ...] = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

# Perceptually uniform, safe for colour-blind readers; Plotly knows the names, the canvas the stops.
DENSITY_SCALE = "Cividis"
DENSITY_STOPS: tuple[str, ...] = (
    "#00224e",
    "#123570",
    "#3b496c",
    "#575d6d",
    "#707173",
    "#8a8678",
    "#a59c74",
    "#c3b369",
    "#e1cc55",
    "#fee838",
)

# Differences and log ratios: purple and orange with a neutral middle.
DIVERGING_SCALE = "PuOr"
DIVERGING_STOPS: tuple[str, ...] = (
    "#7f3b08",
    "#b35806",
    "#e08214",
    "#fdb863",
    "#fee0b6",
    "#f7f7f7",
    "#d8daeb",
    "#b2abd2",
    "#8073ac",
    "#542788",
    "#2d004b",
)


def color_of(index: int) -> str:
    """Colour of the variant with this index, as #rrggbb."""
    return VARIANT_COLORS[index % len(VARIANT_COLORS)]


def marker_of(index: int) -> str:
    """Plotly symbol of this variant; with the colour it is unique for 64 variants."""
    lap = index // len(VARIANT_COLORS)
    return MARKERS[(index + lap) % len(MARKERS)]


def dash_of(index: int) -> str:
    """Plotly dash of this variant."""
    return DASHES[index % len(DASHES)]
