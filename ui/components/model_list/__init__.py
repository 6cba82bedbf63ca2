"""Models to choose from."""

from ui.components.base import component

ModelList = component(__file__, "model_list")
"""Shows what `ui.compare.model_list.models_value` gives; triggers `pick` with {name}."""
