"""A variant of the reader's own, composed of parts."""

from ui.components.base import component

VariantEditor = component(__file__, "variant_editor")
"""Draws what `composed_value` (ui/compare/editor.py) gives.

Triggers `compose` with what is chosen and typed, and `include` with the same.
"""
