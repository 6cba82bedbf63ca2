"""A list of terms and their text."""

from ui.components.base import component

Facts = component(__file__, "facts")
"""Shows {"rows": [{"label", "text"}]}."""
